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

// containerLibrary is the path of the library in a container.
const containerLibrary = LibraryFolder + "/libration.so"

// Create makes a standing job, which has no command. Programs join it in a container (FindStanding)
// or in a mount namespace (Mount). It exists until it is removed. A standing job of root is for
// programs of all users, and only root can change its limits, as with Keep.
func (p Plan) Create() error {
	if err := checkNotNested(); err != nil {
		return err
	}
	if job.Ruled() {
		return fmt.Errorf("%w: this machine's policy puts all your programs into your ration, so none could join this job (ration run --mem 5g -- COMMAND gives a command a part of the ration)", ErrNested)
	}
	p.standing, p.Command, p.Join, p.Keep = true, nil, false, os.Geteuid() == 0
	j := &Job{keep: p.Keep}
	// The library is unpacked where programs join: by FindStanding and Mount.
	if p.FakeGPU != "" {
		if err := p.unpack(j); err != nil {
			return err
		}
	}
	if err := p.make(j); err != nil {
		return err
	}
	priority := p.forAllUsers() && p.Settings.Priority != 0
	err := makeMountPoints(j.Lock.Folder, priority)
	if err == nil && priority {
		err = job.MakePriorityFile(job.Folder())
	}
	return j.standAfter(err)
}

// standAfter lets processes join a new job, unless err says that an earlier step failed. Then it
// discards the job. It drops this process's lock.
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

// mountPoints is a folder inside a standing job's folder. A container sees it as runFolder,
// read-only, and the other files are mounted on it. It must be on a read-only file system, because
// root in a container could otherwise rename a folder with a mount in it.
const mountPoints = "mounts"

// makeMountPoints makes mountPoints. The containers of a job with a priority see the machine's file by
// which jobs with a priority know of each other; others cannot claim one.
func makeMountPoints(folder string, priority bool) error {
	points := filepath.Join(folder, mountPoints)
	folders := []string{points, filepath.Join(points, "job"), filepath.Join(points, "lib")}
	files := []string{"job/" + job.RegionName, "job/" + job.CreatedName, "lib/libration.so"}
	if _, err := os.Lstat(filepath.Join(folder, job.RegionName+region.LimitsSuffix)); err == nil {
		files = append(files, "job/"+job.RegionName+region.LimitsSuffix)
	}
	if isFolder(filepath.Join(folder, job.MachineName)) {
		folders = append(folders, filepath.Join(points, "job", job.MachineName), filepath.Join(points, "lib", fakeFolder))
	}
	if priority {
		files = append(files, job.PriorityFile)
	}
	var err error
	for _, path := range folders {
		err = errors.Join(err, os.Mkdir(path, 0o755), os.Chmod(path, 0o755)) // whatever the umask
	}
	for _, path := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(points, path), nil, 0o644))
	}
	if err != nil {
		return fmt.Errorf("making mount points: %w", err)
	}
	return nil
}

// fakeFolder is the folder of the stand-in driver inside the folder of libraries.
const fakeFolder = "fakegpu"

// Standing has everything that puts a program in a container into a standing job.
type Standing struct {
	Name     string
	Mappings []Mapping
	Environ  []string // overridden by files at the well-known path
}

// Mapping is a file or folder of the machine, and its path for programs of a job.
type Mapping struct {
	From, To string
	Writable bool
	Programs bool // it is, or contains, a file that programs execute or load
}

// FindStanding returns the mounts and variables of a standing job. It unpacks the library.
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
	if _, err := os.Lstat(filepath.Join(folder, mountPoints, job.PriorityFile)); err == nil {
		s.Mappings = append(s.Mappings, Mapping{From: filepath.Join(job.Folder(), job.PriorityFile), To: runFolder + "/" + job.PriorityFile})
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
	// A user's job may have its limits in the region. Root's may not: without its limits file, the
	// job would use limits that a tenant can write.
	if _, err := os.Lstat(found.Path + region.LimitsSuffix); err != nil && (os.Geteuid() == 0 || !errors.Is(err, os.ErrNotExist)) {
		return found, 0, fmt.Errorf("looking for the limits of job %s: %w (remove the job, and create it again)", found.Name, err)
	}
	// Root's region is a mount. It is missing if the job was created in another mount namespace;
	// then there is only an empty file, the mount point.
	r, err := region.OpenReadOnly(found.Path)
	if err != nil {
		return found, 0, fmt.Errorf("%w (was job %s created in another mount namespace?)", err, found.Name)
	}
	return found, created, r.Close()
}

// hasOwnMounts reports whether this process has another mount namespace than one of its ancestors.
// If not, the namespace is assumed to be the machine's, because ordinary users cannot inspect
// process 1.
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

// Mount puts all programs of this process's mount namespace into a standing job, as Keep does. The
// namespace must not be that of the machine, because then all programs of the machine would be in
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
