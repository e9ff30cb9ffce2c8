package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"ration/internal/embedded"
	"ration/internal/job"
	"ration/internal/region"
)

// With Plan.Keep a job runs in a mount namespace of its own, in which
//
//	/etc/ld.so.preload        names the library, for every program of every user,
//	                          whatever its environment
//	/run/ration/job           is the job, where the library looks for one; the file
//	                          created in it says that there must be one, and which;
//	                          the file name has its name
//	/run/ration/lib           is the folder of libraries
//
// Root may mount. An ordinary user may mount in a user namespace, in which only that
// user exists; /etc/ld.so.preload and /run/ration must exist already, and the packages
// make them.

// Inside is the name of the ration command that mounts in such a user namespace.
const Inside = "inside"

const (
	runFolder = "/run/ration"
	// LibraryFolder is the path of the library's folder for programs of such a job.
	LibraryFolder = runFolder + "/" + embedded.FolderName
)

// ErrKeep is returned if the kernel or the machine does not allow Plan.Keep.
var ErrKeep = errors.New("--keep does not work here")

// namespaceTask describes how to set up a mount namespace. Enter gets it as JSON.
type namespaceTask struct {
	Job     string // folder of the job
	Lib     string // folder of libraries
	Library string // path of libration.so in the namespace
	Created int64  // when the job's region was made, in Unix nanoseconds
	Path    string // of the command
	Args    []string
}

func (j *Job) namespaceTask() namespaceTask {
	return namespaceTask{j.Lock.Folder, j.libraryFolder(), j.pathInside(j.library), j.created, j.path, j.args}
}

// libraryFolder returns the folder of all unpacked libraries.
func (j *Job) libraryFolder() string { return filepath.Dir(filepath.Dir(j.library)) }

// checkKeep returns an error if Keep is known not to work here. It makes the mount points if it has
// the rights.
func checkKeep() error {
	root := os.Geteuid() == 0
	if root {
		if err := os.MkdirAll(runFolder, 0o755); err != nil {
			return fmt.Errorf("making %s: %w: %w", runFolder, ErrKeep, err)
		}
		// The file is not removed later: an empty file has no effect, and removing it would unmount
		// it in the namespaces of running jobs.
		f, err := os.OpenFile(PreloadFile, os.O_RDONLY|os.O_CREATE, 0o644)
		if err != nil {
			return fmt.Errorf("making %s: %w: %w", PreloadFile, ErrKeep, err)
		}
		return f.Close()
	}
	for path, command := range map[string]string{runFolder: "mkdir " + runFolder, PreloadFile: "touch " + PreloadFile} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("looking for %s: %w: it must exist (ask an administrator for %s; the packages of ration bring it)", path, ErrKeep, command)
		}
	}
	return nil
}

func namespaceError(err error) error {
	return fmt.Errorf("making a mount namespace: %w: %w (in a container it needs CAP_SYS_ADMIN; without --keep only the environment carries the limits)", ErrKeep, err)
}

// mount mounts everything in this thread's namespace. It opens all sources first, because the first
// mount may hide their folder.
func (t namespaceTask) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return namespaceError(err)
	}
	var binds []bindMount
	var readOnly []string
	defer func() {
		for _, b := range binds {
			_ = unix.Close(b.fd)
		}
	}()
	for _, s := range []struct{ from, to string }{
		{filepath.Join(t.Job, "region"), job.WellKnown + "/region"},
		{filepath.Join(t.Job, "region"+region.LimitsSuffix), job.WellKnown + "/region" + region.LimitsSuffix},
		{filepath.Join(t.Job, job.MachineName), job.WellKnown + "/" + job.MachineName},
		{t.Lib, LibraryFolder},
		{t.priorityFile(), runFolder + "/" + job.PriorityFile},
	} {
		fd, err := unix.Open(s.from, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) && s.from == t.priorityFile() {
			continue // the limits file, the stand-in driver and the file of priorities, which may be root's alone, are optional
		}
		if err != nil {
			return fmt.Errorf("opening %s: %w", s.from, err)
		}
		binds = append(binds, bindMount{fd, s.to})
		if strings.HasSuffix(s.to, region.LimitsSuffix) || strings.HasSuffix(s.to, job.PriorityFile) { // read-only even for root in the job
			readOnly = append(readOnly, s.to)
		}
	}
	preloads, err := os.ReadFile(PreloadFile)
	if err != nil {
		return fmt.Errorf("reading %s: %w", PreloadFile, err)
	}
	if err := unix.Mount("ration", runFolder, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=256k"); err != nil {
		return fmt.Errorf("mounting on %s: %w: %w", runFolder, ErrKeep, err)
	}
	for _, b := range binds {
		if err := b.mount(); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{"created": strconv.FormatInt(t.Created, 10), job.EnclosingName: filepath.Base(t.Job)} {
		path := filepath.Join(job.WellKnown, name)
		if err := errors.Join(os.WriteFile(path, []byte(text+"\n"), 0o644), os.Chmod(path, 0o644)); err != nil {
			return fmt.Errorf("writing %s: %w", path, err)
		}
	}
	list := runFolder + "/ld.so.preload"
	// The policy's library belongs to the machine, and its version may differ from the job's.
	others := strings.ReplaceAll(string(preloads), PolicyLibrary+"\n", "")
	text := strings.TrimRight(others, "\n") + "\n" + t.Library + "\n"
	if err := errors.Join(os.WriteFile(list, []byte(strings.TrimLeft(text, "\n")), 0o644), os.Chmod(list, 0o644)); err != nil {
		return fmt.Errorf("writing %s: %w", list, err)
	}
	if err := unix.Mount(list, PreloadFile, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting on %s: %w: %w", PreloadFile, ErrKeep, err)
	}
	// Make the mounts read-only, so that no process of the job can change the files, not even their
	// owner. Each mount needs its own call, because they share a file system.
	for _, path := range append(readOnly, PreloadFile, runFolder) {
		if err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
			return fmt.Errorf("closing %s: %w: %w", path, ErrKeep, err)
		}
	}
	return nil
}

// priorityFile returns the path of the file by which jobs with a priority know of each other: beside the
// job, or else root's.
func (t namespaceTask) priorityFile() string {
	beside := filepath.Join(filepath.Dir(t.Job), job.PriorityFile)
	if _, err := os.Lstat(beside); err == nil {
		return beside
	}
	return filepath.Join(runFolder, job.PriorityFile)
}

// bindMount is a bind mount of an open file or folder.
type bindMount struct {
	fd int
	to string
}

// mount makes the mount point, and mounts.
func (b bindMount) mount() error {
	var st unix.Stat_t
	err := errors.Join(unix.Fstat(b.fd, &st), makePublicFolder(filepath.Dir(b.to)))
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = makePublicFolder(b.to)
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

// makePublicFolder makes a folder that all users may enter, whatever the umask is.
func makePublicFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil || dir == runFolder {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// Enter is the command Inside. It runs in the namespaces that it was started in: it mounts, drops
// the capability to mount, and becomes the command.
func Enter(task string) error {
	var t namespaceTask
	if err := json.Unmarshal([]byte(task), &t); err != nil {
		return fmt.Errorf("reading the task: %w (this command is for ration itself, not for people)", err)
	}
	env := environment(os.Environ())
	if os.Getenv(envListenPID) == strconv.Itoa(os.Getppid()) {
		env.set(envListenPID, strconv.Itoa(os.Getpid()))
		env.drop(func(key string) bool { return key == "LISTEN_PIDFDID" }) // of the parent, and optional
	}
	if t.Job == "" { // without --keep
		return execCommand(t.Path, t.Args, env)
	}
	if err := t.mount(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	return execCommand(t.Path, t.Args, env)
}
