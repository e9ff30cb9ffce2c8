package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"ration/internal/embedded"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/region"
)

// kernel checks for what the library and the launcher cannot do without.
func (v *visit) kernel() {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		v.skip("kernel", "not known: %v", err)
		return
	}
	release := unix.ByteSliceToString(u.Release[:])
	switch major, minor := versionOf(release); {
	case major < 3 || major == 3 && minor < 15:
		v.fail("kernel", "use 3.15 or newer", "%s has no locks that children inherit", release)
	case major < 4 || major == 4 && minor < 14:
		v.warn("kernel", "use 4.14 or newer", "%s: a fork past the C library counts as its parent", release)
	default:
		v.pass("kernel", "%s", release)
	}
}

// versionOf takes the first two numbers of a version.
func versionOf(text string) (major, minor int) {
	if n, _ := fmt.Sscanf(text, "%d.%d", &major, &minor); n < 2 {
		return 0, 0
	}
	return major, minor
}

// jobsFolder makes a job where jobs are made, and a region in it.
func (v *visit) jobsFolder() {
	const way = "name another folder in " + job.EnvFolder
	if at := os.Getenv(launch.EnvRegion); at != "" {
		v.warn("inside a job", "run the doctor outside it", "%s is %s: what follows is about the machine as this job sees it", launch.EnvRegion, at)
	}
	hold, err := job.Create("doctor-" + strconv.Itoa(os.Getpid()))
	if err != nil {
		v.fail("job folder", way, "%v", err)
		return
	}
	defer hold.RemoveIfUnused()
	r, err := region.Open(hold.Job.Path, region.Options{})
	if err != nil {
		v.fail("job folder", way, "%v", err)
		return
	}
	defer r.Close()
	v.folder = true
	v.pass("job folder", "%s, on %s", job.Folder(), fileSystem(hold.Folder))
	if err := locks(hold.Folder); err != nil {
		v.fail("locks", way+", on a local file system", "%v", err)
		return
	}
	v.pass("locks", "the kernel keeps them there, and shows them to others")
}

// locks checks that a lock that one descriptor holds stands in another's way: it
// is how everybody knows who lives.
func locks(folder string) error {
	path := filepath.Join(folder, "lock")
	var fds [2]int
	for i := range fds {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		fds[i] = fd
	}
	l := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(uintptr(fds[0]), unix.F_SETLK, &l); err != nil {
		return err
	}
	l = unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(uintptr(fds[1]), unix.F_OFD_GETLK, &l); err != nil {
		return err
	}
	if l.Type == unix.F_UNLCK {
		return errors.New("a lock was taken, and nobody can see it")
	}
	return nil
}

var fileSystems = map[int64]string{
	unix.TMPFS_MAGIC: "tmpfs", unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlayfs", unix.NFS_SUPER_MAGIC: "NFS",
}

func fileSystem(path string) string {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) == nil && fileSystems[int64(st.Type)] != "" {
		return fileSystems[int64(st.Type)]
	}
	return "an unknown file system"
}

// unpack puts the library where jobs find it.
func (v *visit) unpack() {
	dir, err := embedded.Ration.Unpack()
	switch {
	case errors.Is(err, embedded.ErrNotBuilt):
		v.fail("library", "run make, or install a package", "%v", err)
		return
	case err != nil:
		v.fail("library", "name a folder in "+embedded.EnvFolder+" from which programs may be run", "%v", err)
		return
	}
	v.library = filepath.Join(dir, "libration.so")
	if v.FakeGPU == "" {
		return
	}
	if v.drivers, err = embedded.FakeGPU.Unpack(); err != nil {
		v.fail("stand-in driver", "run make, or install a package", "%v", err)
	}
}
