package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"ration/internal/embedded"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/region"
)

// checkKernel checks for the features that the library and the launcher need.
func (c *checker) checkKernel() {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		c.skip("kernel", "version not known: %v", err)
		return
	}
	release := unix.ByteSliceToString(u.Release[:])
	switch major, minor := parseVersion(release); {
	case major < 3 || major == 3 && minor < 15:
		c.fail("kernel", "use 3.15 or newer", "%s has no locks that children inherit", release)
	case major < 4 || major == 4 && minor < 14:
		c.warn("kernel", "use 4.14 or newer", "%s: a process that is forked without the C library counts as its parent", release)
	default:
		c.pass("kernel", "%s", release)
	}
}

// parseVersion returns the first two numbers of a version, or 0 and 0.
func parseVersion(text string) (major, minor int) {
	if n, _ := fmt.Sscanf(text, "%d.%d", &major, &minor); n < 2 {
		return 0, 0
	}
	return major, minor
}

// checkJobFolder creates a region in the folder of jobs, where no command and no agent takes it for a job's, and removes it.
func (c *checker) checkJobFolder() {
	remedy := "name another folder in " + job.EnvFolder
	if job.PolicyInForce() && job.Folder() == job.RootFolder {
		remedy = "see that it can be written, and has space: the policy's service needs this folder"
	}
	if path := os.Getenv(launch.EnvRegion); path != "" {
		c.warn("inside a job", "run the doctor outside it", "%s is %s: the other checks show the machine as this job sees it", launch.EnvRegion, path)
	}
	folder, err := job.MakeScratch()
	if err != nil {
		c.fail("job folder", remedy, "%v", err)
		return
	}
	defer os.RemoveAll(folder)
	r, err := region.Open(filepath.Join(folder, "check"), region.Options{})
	if err != nil {
		c.fail("job folder", remedy, "%v", err)
		return
	}
	defer r.Close()
	c.hasJobs = true
	if taken, reason := job.Displaced(); taken != "" {
		c.warn("job folder", "as root: rm -r "+taken, "%s %s: your jobs are in %s instead, on %s", taken, reason, job.Folder(), job.FileSystem(folder))
	} else {
		c.pass("job folder", "%s, on %s", job.Folder(), job.FileSystem(folder))
	}
	if err := checkLocks(folder); err != nil {
		c.fail("locks", remedy+", on a local file system", "%v", err)
		return
	}
	c.pass("locks", "the kernel keeps them there, and shows them to other processes")
}

// checkLocks checks that locks of two descriptors conflict. Processes use these locks to know which
// others are alive.
func checkLocks(folder string) error {
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
		return errors.New("a lock on one descriptor is not seen by another")
	}
	return nil
}

// unpackLibrary unpacks the library, and the stand-in driver if it is used. It returns an error
// only if the stand-in does not exist.
func (c *checker) unpackLibrary() error {
	dir, err := embedded.Ration.Unpack()
	switch {
	case errors.Is(err, embedded.ErrNotBuilt):
		c.fail("library", "run make, or install a package", "%v", err)
		return nil
	case err != nil:
		c.fail("library", "name a folder in "+embedded.EnvFolder+" from which programs may be run", "%v", err)
		return nil
	}
	c.library = filepath.Join(dir, "libration.so")
	if c.FakeGPU == "" {
		return nil
	}
	if c.fakeGPU, err = embedded.FakeGPU.Unpack(); err != nil {
		c.fail("stand-in driver", "run make, or install a package", "%v", err)
		return nil
	}
	driver, err := gpu.OpenFake(c.fakeGPU, c.FakeGPU, filepath.Join(c.scratch, "gpu"))
	if err != nil {
		return err
	}
	driver.Close()
	return nil
}
