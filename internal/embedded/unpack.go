package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/job"
)

// ErrFolder is returned for a folder in which another user could replace the library.
var ErrFolder = errors.New("folder for the library cannot be trusted")

// ErrNoExec is returned for a folder from which no library can be loaded.
var ErrNoExec = errors.New("file system is mounted noexec")

// EnvFolder is a variable that names another folder to unpack into.
const EnvFolder = "RATION_LIB"

// maxCopies bounds how many unusable folders of one content are skipped.
const maxCopies = 64

// FolderName is the name of the folder in the folder of jobs. No job can have it.
const FolderName = "lib"

// candidateFolders returns the folders to unpack into, the preferred one first. The folder of jobs
// is best because most systems empty it at a boot, but some mount it noexec.
func candidateFolders() []string {
	if dir := os.Getenv(EnvFolder); dir != "" {
		return []string{dir}
	}
	list := []string{filepath.Join(job.Folder(), FolderName)}
	if os.Geteuid() == 0 {
		return append(list, "/var/lib/ration/"+FolderName)
	}
	if dir, err := os.UserCacheDir(); err == nil {
		list = append(list, filepath.Join(dir, "ration", FolderName))
	}
	return append(list, filepath.Join(os.TempDir(), "ration-"+strconv.Itoa(os.Geteuid()), FolderName))
}

// Unpack writes a bundle's files to disk, unless they exist, and returns their folder.
func (b Bundle) Unpack() (string, error) {
	c, err := b.read()
	if err != nil {
		return "", err
	}
	var errs []error
	for _, folder := range candidateFolders() {
		dir, err := b.unpack(c, folder)
		if err == nil {
			return dir, nil
		}
		if errors.Is(err, job.ErrFolder) {
			return "", err // no job can be made in it either, so another folder for the library is no help
		}
		errs = append(errs, fmt.Errorf("unpacking %s: %w", b.Name, err))
		if errors.Is(err, ErrFolder) {
			break // it may be an attack, so the user must see it
		}
	}
	return "", errors.Join(errs...)
}

func (b Bundle) unpack(c content, folder string) (string, error) {
	folder, err := prepareFolder(folder)
	if err != nil {
		return "", err
	}
	for n := range maxCopies {
		dir := filepath.Join(folder, b.Name+"-"+c.id)
		if n > 0 {
			dir += "." + strconv.Itoa(n)
		}
		if c.isIntact(dir) {
			return dir, nil
		}
		err := c.write(dir)
		// Another process was faster, or the folder is unusable. It is not changed, because a
		// running program may have its files mapped.
		if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
			if c.isIntact(dir) {
				return dir, nil
			}
			continue
		}
		if err != nil {
			return "", fmt.Errorf("%w (name another folder in %s)", err, EnvFolder)
		}
		return dir, nil
	}
	return "", fmt.Errorf("%s holds %d unusable copies: %w (remove them)", folder, maxCopies, ErrFolder)
}

// isIntact reports whether a folder has the right content and no other user may change it.
func (c content) isIntact(dir string) bool {
	if checkTrusted(dir) != nil {
		return false
	}
	for _, name := range c.files {
		if !c.isIn(filepath.Join(dir, name), name) {
			return false
		}
	}
	return true
}

// compared has the state of each file that had the right content when this process compared it, by its path
// and the content's hash: a program that makes many jobs does not read the library for each. The kernel
// changes a file's ctime with every change of the file.
var compared sync.Map // comparison to fileState

type comparison struct{ path, id string }

type fileState struct {
	dev, ino         uint64
	size             int64
	mtime, ctime     unix.Timespec
	mode, uid, links uint64
}

// settledAfter is how old the last change of a file has to be before its state is remembered: two changes within
// one tick of the kernel's clock have the same ctime.
var settledAfter = time.Second

func stateOf(st *unix.Stat_t) fileState {
	return fileState{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Ctim, uint64(st.Mode), uint64(st.Uid), uint64(st.Nlink)}
}

// isIn reports whether a file on disk has the content of one of the bundle's, can be executed, and no other user may
// change it.
func (c content) isIn(path, name string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o022 != 0 || st.Mode&0o111 == 0 ||
		!isTrustedOwner(st.Uid) {
		return false
	}
	key, state := comparison{path, c.id}, stateOf(&st)
	if known, ok := compared.Load(key); ok && known == state {
		return true
	}
	now := time.Now()
	own, err := c.open(name)
	if err != nil {
		return false
	}
	defer own.Close()
	if !areEqual(f, own) {
		return false
	}
	if changed := time.Unix(st.Ctim.Unix()); now.Sub(changed) > settledAfter {
		compared.Store(key, state)
	}
	return true
}

// areEqual reports whether two files have the same bytes.
func areEqual(a, b io.Reader) bool {
	var bufferA, bufferB [32 << 10]byte
	for {
		n, errA := io.ReadFull(a, bufferA[:])
		m, errB := io.ReadFull(b, bufferB[:])
		switch {
		case !bytes.Equal(bufferA[:n], bufferB[:m]):
			return false
		case errA != nil || errB != nil: // at the end of both
			return isEnd(errA) && isEnd(errB)
		}
	}
}

func isEnd(err error) bool { return err == io.EOF || err == io.ErrUnexpectedEOF }

// write writes the files into a new folder, and renames that to dir.
func (c content) write(dir string) error {
	removeUnfinished(filepath.Dir(dir))
	tmp, err := os.MkdirTemp(filepath.Dir(dir), unfinished)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for _, name := range c.files {
		data, err := fs.ReadFile(c.from, path.Join("files", name))
		// The mode must not depend on the umask: all users use root's library.
		file := filepath.Join(tmp, name)
		if err := errors.Join(err, os.WriteFile(file, data, 0o755), os.Chmod(file, 0o755)); err != nil {
			return err
		}
		_ = os.Chmod(file, 0o755|os.ModeSticky) // systemd-tmpfiles removes no such file, whatever its age
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// unfinished is the prefix of a folder that is being written.
const unfinished = ".new-"

// removeUnfinished removes folders that killed processes left behind. Writing one takes less than a
// second, so only those older than an hour are removed.
func removeUnfinished(folder string) {
	entries, _ := os.ReadDir(folder) // on an error they stay
	for _, e := range entries {
		st, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), unfinished) && time.Since(st.ModTime()) > time.Hour {
			_ = os.RemoveAll(filepath.Join(folder, e.Name()))
		}
	}
}

// prepareFolder makes the folder of all bundles. It checks that no other user can change libraries
// in it, and that libraries can be loaded from it.
func prepareFolder(folder string) (string, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	mode := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o755 // for programs of root that change their user
	}
	parent := filepath.Dir(folder)
	if err := os.MkdirAll(filepath.Dir(parent), 0o755); err != nil {
		return "", err
	}
	for _, dir := range []string{parent, folder} {
		err := os.Mkdir(dir, mode)
		if err == nil || dir == "/run/ration" && errors.Is(err, fs.ErrExist) {
			err = os.Chmod(dir, mode) // whatever the umask, and also if it was made for jobs
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	if filepath.Clean(job.Folder()) == parent {
		if err := job.CheckFolder(); err != nil {
			return "", err
		}
	}
	if err := checkTrusted(folder); err != nil {
		return "", err
	}
	// In the parent folder no other user may rename it. /tmp, with its sticky bit, is fine.
	var st unix.Stat_t
	if err := unix.Lstat(parent, &st); err != nil {
		return "", err
	}
	if st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 || !isTrustedOwner(st.Uid) {
		return "", fmt.Errorf("%s can be written by others: %w (name another folder in %s)", parent, ErrFolder, EnvFolder)
	}
	var vfs unix.Statfs_t
	if err := unix.Statfs(folder, &vfs); err != nil {
		return "", err
	}
	if vfs.Flags&unix.ST_NOEXEC != 0 {
		return "", fmt.Errorf("%s: %w, so no library can be loaded from it (name another folder in %s)", folder, ErrNoExec, EnvFolder)
	}
	return folder, nil
}

// checkTrusted returns ErrFolder for a folder in which another user could replace files.
func checkTrusted(dir string) error {
	reason, err := job.UntrustedReason(dir)
	if err != nil || reason == "" {
		return err
	}
	return fmt.Errorf("%s %s: %w (remove it, or name another folder in %s)", dir, reason, ErrFolder, EnvFolder)
}

// isTrustedOwner reports whether a user is root or this process's.
func isTrustedOwner(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }
