package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"ration/internal/embedded"
	"ration/internal/region"
)

// A job that is to be kept runs in a mount namespace of its own, in which
//
//	/etc/ld.so.preload        names the library, for every program, whatever its
//	                          environment and whoever it runs as
//	/run/ration/job           is the job, where the library looks for one
//	/run/ration/lib           is where the library is
//
// Root needs nothing else for this. An ordinary user gets the right to mount in a
// user namespace, in which only this user exists; the two places must be there
// already, as the packages put them.

// Inside is the command by which ration sets up such a namespace from within.
const Inside = "inside"

const (
	runFolder = "/run/ration"
	runLib    = runFolder + "/" + embedded.FolderName
)

// ErrKeep is returned where the kernel, or the machine, does not allow it.
var ErrKeep = errors.New("limits cannot be kept from here")

// mounts is what goes where.
type mounts struct {
	Job     string // its folder
	Lib     string // the folder of libraries
	Library string // in there
	Path    string // of the command
	Args    []string
}

func (j *Job) mounts() mounts {
	return mounts{j.Hold.Folder, j.libraries(), j.inside(j.library), j.path, j.args}
}

// libraries is the folder in which all of them are.
func (j *Job) libraries() string { return filepath.Dir(filepath.Dir(j.library)) }

// mayKeep finds out what can be known before a namespace is made.
func mayKeep() error {
	root := os.Geteuid() == 0
	if root {
		if err := os.MkdirAll(runFolder, 0o755); err != nil {
			return fmt.Errorf("making a place for the job: %w: %w", ErrKeep, err)
		}
		// Empty it says nothing, so it does no harm to stay; removed, it would take
		// the mounts of running jobs with it.
		f, err := os.OpenFile(preloadFile, os.O_RDONLY|os.O_CREATE, 0o644)
		if err != nil {
			return fmt.Errorf("making %s: %w: %w", preloadFile, ErrKeep, err)
		}
		return f.Close()
	}
	for path, way := range map[string]string{runFolder: "mkdir " + runFolder, preloadFile: "touch " + preloadFile} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("looking for %s: %w: it has to be there (ask an administrator for %s; the packages of ration bring it)", path, ErrKeep, way)
		}
	}
	return nil
}

// enter takes this thread into a namespace of its own; exec must follow on it.
func (j *Job) enter() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return refusedNamespace(err)
	}
	return j.mounts().mount()
}

func refusedNamespace(err error) error {
	return fmt.Errorf("making a mount namespace: %w: %w (in a container it needs CAP_SYS_ADMIN; without --keep only the environment carries the limits)", ErrKeep, err)
}

// mount puts everything in its place. Sources are opened first: the folder that
// holds them may be the one that is covered.
func (m mounts) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return refusedNamespace(err)
	}
	var binds []bind
	defer func() {
		for _, b := range binds {
			_ = unix.Close(b.fd)
		}
	}()
	for _, s := range []struct{ from, to string }{
		{filepath.Join(m.Job, "region"), WellKnown + "/region"},
		{filepath.Join(m.Job, "region"+region.LimitsSuffix), WellKnown + "/region" + region.LimitsSuffix},
		{filepath.Join(m.Job, "gpu"), WellKnown + "/gpu"},
		{m.Lib, runLib},
	} {
		fd, err := unix.Open(s.from, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue // not every job has limits beside it, or a stand-in driver
		}
		if err != nil {
			return fmt.Errorf("opening %s: %w", s.from, err)
		}
		binds = append(binds, bind{fd, s.to})
	}
	preloads, err := os.ReadFile(preloadFile)
	if err != nil {
		return fmt.Errorf("reading %s: %w", preloadFile, err)
	}
	if err := unix.Mount("ration", runFolder, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=256k"); err != nil {
		return fmt.Errorf("mounting on %s: %w: %w", runFolder, ErrKeep, err)
	}
	for _, b := range binds {
		if err := b.mount(); err != nil {
			return err
		}
	}
	list := runFolder + "/ld.so.preload"
	text := strings.TrimRight(string(preloads), "\n") + "\n" + m.Library + "\n"
	if err := errors.Join(os.WriteFile(list, []byte(strings.TrimLeft(text, "\n")), 0o644), os.Chmod(list, 0o644)); err != nil {
		return fmt.Errorf("writing %s: %w", list, err)
	}
	if err := unix.Mount(list, preloadFile, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting on %s: %w: %w", preloadFile, ErrKeep, err)
	}
	// From here on nobody adds to it or takes away.
	if err := unix.Mount("", runFolder, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("closing %s: %w: %w", runFolder, ErrKeep, err)
	}
	return nil
}

type bind struct {
	fd int
	to string
}

// mount makes what is mounted on, and mounts.
func (b bind) mount() error {
	var st unix.Stat_t
	err := errors.Join(unix.Fstat(b.fd, &st), mkdir(filepath.Dir(b.to)))
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = mkdir(b.to)
	} else if err == nil {
		err = os.WriteFile(b.to, nil, 0o644)
	}
	if err == nil {
		err = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", b.fd), b.to, "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("mounting on %s: %w: %w", b.to, ErrKeep, err)
	}
	return nil
}

// mkdir makes a folder that everybody may enter, whatever the umask is.
func mkdir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil || dir == runFolder {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// Enter is what the command Inside does: in a namespace that was made for it, it
// mounts, gives up the right to, and becomes the command.
func Enter(task string) error {
	var m mounts
	if err := json.Unmarshal([]byte(task), &m); err != nil {
		return fmt.Errorf("reading the task: %w (this command is for ration itself, not for people)", err)
	}
	if err := m.mount(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	return become(m.Path, m.Args, os.Environ())
}
