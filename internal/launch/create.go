package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"ration/internal/embedded"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/region"
)

var (
	// ErrNotStanding is returned for a job that ends with its command.
	ErrNotStanding = errors.New("not a job that ration create made")
	// ErrMachine is returned for the mount namespace of the whole machine.
	ErrMachine = errors.New("this is the mount namespace of the machine")
)

// containerLibrary is where programs in a container find the library.
const containerLibrary = LibraryFolder + "/libration.so"

// Create makes a standing job: one without a command, that programs join where an operator
// puts it, in a container (FindStanding) or a mount namespace (Mount). It is there until it is
// removed. Root's is for programs of all users, and its limits are root's, as with Keep.
func (p Plan) Create() error {
	if err := checkNotNested(); err != nil {
		return err
	}
	p.standing, p.Command, p.Join, p.Keep = true, nil, false, os.Geteuid() == 0
	j := &Job{keep: p.Keep}
	if err := p.unpack(j); err != nil {
		return err
	}
	if err := p.make(j); err != nil {
		return err
	}
	return j.standAfter(makeMountPoints(j.Lock.Folder))
}

// standAfter lets processes into a job that is made, unless what had to be done before failed, and
// drops this process's lock. Where it fails the job is discarded.
func (j *Job) standAfter(err error) error {
	if err == nil {
		err = j.Lock.Stand(j.created, containerLibrary)
	}
	if err != nil {
		j.Discard()
		return err
	}
	j.Lock.Release()
	return nil
}

// mountPoints is the folder, in a standing job's, that is runFolder in a container, for reading: what
// the other files are mounted on. Root in a container can rename a folder in which something
// is mounted, unless that is in a file system for reading.
const mountPoints = "mounts"

func makeMountPoints(folder string) error {
	points := filepath.Join(folder, mountPoints)
	folders := []string{points, filepath.Join(points, "job"), filepath.Join(points, "lib")}
	files := []string{"job/" + job.RegionName, "job/" + job.CreatedName, "lib/libration.so"}
	if _, err := os.Lstat(filepath.Join(folder, job.RegionName+region.LimitsSuffix)); err == nil {
		files = append(files, "job/"+job.RegionName+region.LimitsSuffix)
	}
	if isFolder(filepath.Join(folder, job.MachineName)) {
		folders = append(folders, filepath.Join(points, "job", job.MachineName), filepath.Join(points, "lib", fakeFolder))
	}
	var err error
	for _, path := range folders {
		err = errors.Join(err, os.Mkdir(path, 0o755), os.Chmod(path, 0o755)) // whatever the umask is
	}
	for _, path := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(points, path), nil, 0o644))
	}
	if err != nil {
		return fmt.Errorf("making mount points: %w", err)
	}
	return nil
}

// fakeFolder is the folder of the stand-in driver in that of libraries.
const fakeFolder = "fakegpu"

// Standing is what a program in a container needs to be in a standing job.
type Standing struct {
	Name     string
	Mappings []Mapping
	Environ  []string // what is at the well-known path counts before it
}

// Mapping is a file or folder of the machine, and where programs of a job find it.
type Mapping struct {
	From, To string
	Writable bool
	Programs bool // it is, or holds, what programs execute or load
}

// FindStanding returns what a program needs to be in a standing job. It unpacks the library.
func FindStanding(name string) (*Standing, error) {
	found, created, err := findStanding(name)
	if err != nil {
		return nil, err
	}
	libraries, err := embedded.Ration.Unpack()
	if err != nil {
		return nil, err
	}
	folder := filepath.Dir(found.Path)
	own := func(name string) Mapping {
		return Mapping{From: filepath.Join(folder, name), To: job.WellKnown + "/" + name}
	}
	accounts, limits := own(job.RegionName), own(job.RegionName+region.LimitsSuffix)
	accounts.Writable = true
	s := &Standing{Name: found.Name, Mappings: []Mapping{{From: filepath.Join(folder, mountPoints), To: runFolder}, accounts}}
	if _, err := os.Lstat(limits.From); err == nil {
		s.Mappings = append(s.Mappings, limits)
	}
	s.Mappings = append(s.Mappings, own(job.CreatedName),
		Mapping{From: filepath.Join(libraries, "libration.so"), To: containerLibrary, Programs: true},
		Mapping{From: filepath.Join(folder, job.PreloadsName), To: PreloadFile})
	s.Environ = []string{EnvRegion + "=" + accounts.To, EnvJob + "=" + found.Name, fmt.Sprintf("%s=%d", EnvCreated, created)}
	if machine := own(job.MachineName); isFolder(machine.From) {
		machine.Writable = true
		dir, err := embedded.FakeGPU.Unpack()
		if err != nil {
			return nil, err
		}
		driver := Mapping{From: dir, To: LibraryFolder + "/" + fakeFolder, Programs: true}
		s.Mappings = append(s.Mappings, machine, driver)
		s.Environ = append(s.Environ, "FAKEGPU_STATE="+machine.To, "LD_LIBRARY_PATH="+driver.To)
	}
	return s, nil
}

func isFolder(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.IsDir()
}

func findStanding(name string) (found job.Job, created int64, err error) {
	if found, err = job.Find(name); err != nil {
		return found, 0, err
	}
	created, standing := job.StandingSince(found)
	if !standing {
		return found, 0, fmt.Errorf("%s: %w (make one with ration create)", found.Title(), ErrNotStanding)
	}
	// A user's job has its limits in the region. Root's never: without its file the job of a
	// tenant would have those that the tenant writes.
	if _, err := os.Lstat(found.Path + region.LimitsSuffix); err != nil && (os.Geteuid() == 0 || !errors.Is(err, os.ErrNotExist)) {
		return found, 0, fmt.Errorf("looking for the limits of job %s: %w (remove the job, and create it again)", found.Name, err)
	}
	// Root's region is a mount, which is missing where the job was created in another mount
	// namespace. What it is mounted on is an empty file.
	r, err := region.OpenReadOnly(found.Path)
	if err != nil {
		return found, 0, fmt.Errorf("%w (was job %s created in another mount namespace?)", err, found.Name)
	}
	return found, created, r.Close()
}

// hasOwnMounts reports whether this process has another mount namespace than the process that
// started it, or one that started that. Where it has not, the namespace is the machine's, as far
// as can be known: not everybody may look at process 1.
func hasOwnMounts() bool {
	var own unix.Stat_t
	if unix.Stat("/proc/self/ns/mnt", &own) != nil {
		return false
	}
	hasOther := func(pid int) bool {
		var other unix.Stat_t
		return unix.Stat(fmt.Sprintf("/proc/%d/ns/mnt", pid), &other) == nil && (other.Dev != own.Dev || other.Ino != own.Ino)
	}
	return hasOther(1) || proc.Ancestor(os.Getpid(), hasOther) != 0
}

// Mount puts a standing job where all programs of this process's mount namespace find it, as
// Keep does. The namespace must not be that of the machine, all of whose programs would be in
// the job.
func Mount(name string) error {
	if err := checkNotNested(); err != nil {
		return err
	}
	if !hasOwnMounts() {
		return fmt.Errorf("mounting %s: %w: no process that started this one has another (enter one first, with unshare --mount)", name, ErrMachine)
	}
	found, created, err := findStanding(name)
	if err != nil {
		return err
	}
	dir, err := embedded.Ration.Unpack()
	if err != nil {
		return err
	}
	if err := checkKeep(); err != nil {
		return err
	}
	library := filepath.Join(LibraryFolder, filepath.Base(dir), "libration.so")
	return namespaceTask{Job: filepath.Dir(found.Path), Lib: filepath.Dir(dir), Library: library, Created: created}.mount()
}
