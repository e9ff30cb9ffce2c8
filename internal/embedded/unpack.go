package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"ration/internal/job"
)

// ErrFolder is returned for a folder in which somebody else could put a library
// in place of ours.
var ErrFolder = errors.New("folder for the library cannot be trusted")

// ErrNoExec is returned where nothing may be mapped for execution.
var ErrNoExec = errors.New("file system is mounted noexec")

// EnvFolder names another folder to unpack into.
const EnvFolder = "RATION_LIB"

// most is how many spoilt folders of one content there may be.
const most = 64

// FolderName is the folder's among those of jobs; no job may be called that.
const FolderName = "lib"

// folders are where bundles may go, the best first. That of the jobs is forgotten
// at the next boot, like the jobs; but many systems mount it noexec.
func folders() []string {
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

// Unpack puts a bundle's files on disk, unless they are there, and returns their
// folder.
func (b Bundle) Unpack() (string, error) {
	c, err := b.read()
	if err != nil {
		return "", err
	}
	var errs []error
	for _, folder := range folders() {
		dir, err := b.unpack(c, folder)
		if err == nil {
			return dir, nil
		}
		errs = append(errs, fmt.Errorf("unpacking %s: %w", b.Name, err))
		if errors.Is(err, ErrFolder) {
			break // somebody means mischief: better not go on quietly
		}
	}
	return "", errors.Join(errs...)
}

func (b Bundle) unpack(c content, folder string) (string, error) {
	folder, err := prepare(folder)
	if err != nil {
		return "", err
	}
	for n := range most {
		dir := filepath.Join(folder, b.Name+"-"+c.id)
		if n > 0 {
			dir += "." + strconv.Itoa(n)
		}
		if c.sound(dir) {
			return dir, nil
		}
		err := c.write(dir)
		// Somebody else was faster, or something spoilt is in the way. It may be
		// mapped by a running program, so it is left alone either way.
		if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
			if c.sound(dir) {
				return dir, nil
			}
			continue
		}
		if err != nil {
			return "", fmt.Errorf("%w (name another folder in %s)", err, EnvFolder)
		}
		return dir, nil
	}
	return "", fmt.Errorf("%s holds %d spoilt copies: %w (remove them)", folder, most, ErrFolder)
}

// sound says whether a folder holds the content and nobody else may change it.
func (c content) sound(dir string) bool {
	if trusted(dir) != nil {
		return false
	}
	for name, want := range c.files {
		if !same(filepath.Join(dir, name), want) {
			return false
		}
	}
	return true
}

func same(path string, want []byte) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o022 != 0 || st.Mode&0o111 == 0 ||
		!ours(st.Uid) || st.Size != int64(len(want)) {
		return false
	}
	have := make([]byte, len(want))
	n, err := f.ReadAt(have, 0)
	return err == nil && n == len(want) && bytes.Equal(have, want)
}

// write makes the folder in one step.
func (c content) write(dir string) error {
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for name, data := range c.files {
		// Its own mode, whatever the umask is: root's library is for everybody.
		if err := errors.Join(os.WriteFile(filepath.Join(tmp, name), data, 0o755), os.Chmod(filepath.Join(tmp, name), 0o755)); err != nil {
			return err
		}
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// prepare makes the folder of all bundles, and checks that libraries in it are
// ours and can be used.
func prepare(folder string) (string, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	mode := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o755 // a program that gives up root still needs its library
	}
	parent := filepath.Dir(folder)
	if err := os.MkdirAll(filepath.Dir(parent), 0o755); err != nil {
		return "", err
	}
	for _, dir := range []string{parent, folder} {
		err := os.Mkdir(dir, mode)
		if err == nil || dir == "/run/ration" && errors.Is(err, fs.ErrExist) {
			err = os.Chmod(dir, mode) // whatever the umask is; it may have been made for jobs alone
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	if err := trusted(folder); err != nil {
		return "", err
	}
	// The parent may be anybody's whose files nobody else can move: /tmp will do.
	var st unix.Stat_t
	if err := unix.Lstat(parent, &st); err != nil {
		return "", err
	}
	if st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 || !ours(st.Uid) {
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

// trusted refuses what is not a folder, or one that somebody else may write.
func trusted(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return err
	}
	wrong := ""
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		wrong = "is not a folder"
	case !ours(st.Uid):
		wrong = fmt.Sprintf("belongs to user %d", st.Uid)
	case st.Mode&0o022 != 0:
		wrong = fmt.Sprintf("can be written by others (mode %04o)", st.Mode&0o7777)
	default:
		return nil
	}
	return fmt.Errorf("%s %s: %w (remove it, or name another folder in %s)", dir, wrong, ErrFolder, EnvFolder)
}

func ours(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }
