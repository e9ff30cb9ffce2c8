package policy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"ration/internal/embedded"
	"ration/internal/launch"
	"ration/internal/safepath"
)

// The dynamic linker reads /etc/ld.so.preload for every program that starts, so an error in it
// breaks the whole machine. A missing library is harmless: the linker prints an error and
// continues. A library that crashes is not. So:
//
//   - the library is first tried in a program;
//   - all other lines of the file are kept;
//   - the file is replaced by a rename, so that no program reads half of it. If a mount namespace has
//     another file mounted over it, as ration run --keep does, a rename would unmount that file. Then
//     one write in place appends our line, or overwrites it with blanks;
//   - the line is removed before the library;
//   - folders and files that were made for the library are removed, and no others: madeFile lists
//     them. deploy/prerm reads it, too.

// Library is the path of the preloaded library. It is below /usr/lib because profiles of AppArmor
// and SELinux let programs load libraries from there.
const Library = launch.PolicyLibrary

// madeFile lists the folders and the file that were made for the library, one per line, the deepest
// first.
var madeFile = filepath.Join(filepath.Dir(Library), "made")

// untried is the path of the library until it has been tried.
var untried = filepath.Join(filepath.Dir(Library), ".untried.so")

// ErrProbe is returned if programs do not run with the library.
var ErrProbe = errors.New("the library cannot be preloaded on this machine")

// installLibrary tries the library of this program, and renames it to Library. Processes that have
// loaded the previous one keep it.
func installLibrary() error {
	dir, err := embedded.Ration.Unpack()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, filepath.Base(Library)))
	if err != nil {
		return fmt.Errorf("reading the library: %w", err)
	}
	folder := filepath.Dir(Library)
	made := missing(folder, filepath.Dir(folder), launch.PreloadFile)
	err = os.MkdirAll(folder, 0o755)
	for _, path := range []string{filepath.Dir(folder), folder} {
		if err == nil {
			err = os.Chmod(path, 0o755) // every user must load the library, whatever the umask is or was
		}
	}
	if err != nil {
		return fmt.Errorf("making %s: %w", folder, err)
	}
	if err := noteMade(made); err != nil {
		return err
	}
	if has, err := os.ReadFile(Library); err == nil && bytes.Equal(has, text) {
		return probe(Library)
	}
	if err := safepath.Replace(untried, text, 0o755); err != nil {
		return fmt.Errorf("installing the library: %w", err)
	}
	if err := probe(untried); err != nil {
		_ = os.Remove(untried)
		return err
	}
	return os.Rename(untried, Library)
}

// probe runs programs with a library preloaded. They must succeed, and the dynamic linker must
// print nothing.
func probe(library string) error {
	for _, command := range [][]string{{"/bin/true"}, {"/bin/sh", "-c", "true | cat"}} {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "LD_PRELOAD=" + library}
		cmd.Dir = "/"
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			return fmt.Errorf("%w: %s: %v: %s", ErrProbe, strings.Join(command, " "), err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// missing returns the paths that do not exist.
func missing(paths ...string) (out []string) {
	for _, path := range paths {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			out = append(out, path)
		}
	}
	return out
}

// noteMade adds paths to madeFile.
func noteMade(paths []string) error {
	if before := readMade(); len(before) > 0 || len(paths) > 0 {
		paths = append(slices.DeleteFunc(paths, func(path string) bool { return slices.Contains(before, path) }), before...)
		if err := safepath.Replace(madeFile, []byte(strings.Join(paths, "\n")+"\n"), 0o644); err != nil {
			return fmt.Errorf("writing %s: %w", madeFile, err)
		}
	}
	return nil
}

// readMade returns the paths in madeFile.
func readMade() []string {
	text, err := os.ReadFile(madeFile)
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

// removeLibrary removes the library, after its line has been removed, and everything that was made
// for it, except folders and a file that other programs use by now.
func removeLibrary() error {
	made := readMade()
	for _, path := range []string{Library, untried, madeFile} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, path := range made {
		if path != launch.PreloadFile {
			_ = unix.Rmdir(path)
		} else if st, err := os.Lstat(path); err == nil && st.Mode().IsRegular() && st.Size() == 0 && !mountedOver(path) {
			_ = os.Remove(path)
		}
	}
	return nil
}

// Preloaded reports whether programs load the library.
func Preloaded() bool {
	text, err := os.ReadFile(launch.PreloadFile)
	return err == nil && hasLine(text)
}

func hasLine(text []byte) bool {
	return slices.Contains(strings.Split(string(text), "\n"), Library)
}

// withLine returns the text of the file with our line.
func withLine(text []byte) []byte {
	if hasLine(text) {
		return text
	}
	out := slices.Clone(text)
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	return append(out, Library+"\n"...)
}

// withoutLine returns the text without our line and otherwise unchanged.
func withoutLine(text []byte) []byte {
	return []byte(strings.Join(slices.DeleteFunc(strings.SplitAfter(string(text), "\n"), isLine), ""))
}

// blanked returns the text with our line replaced by blanks of the same length.
func blanked(text []byte) []byte {
	lines := strings.SplitAfter(string(text), "\n")
	for i, line := range lines {
		if isLine(line) {
			lines[i] = strings.Replace(line, Library, strings.Repeat(" ", len(Library)), 1)
		}
	}
	return []byte(strings.Join(lines, ""))
}

func isLine(line string) bool { return strings.TrimSuffix(line, "\n") == Library }

// preload adds our line to the file, or removes it.
func preload(on bool) error {
	text, err := os.ReadFile(launch.PreloadFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading %s: %w", launch.PreloadFile, err)
	}
	if hasLine(text) == on {
		return nil
	}
	if mountedOver(launch.PreloadFile) {
		err = preloadInPlace(launch.PreloadFile, text, on)
	} else if on {
		err = replace(launch.PreloadFile, withLine(text))
	} else {
		err = replace(launch.PreloadFile, withoutLine(text))
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", launch.PreloadFile, err)
	}
	return nil
}

// preloadInPlace changes the file without replacing it. It makes a file that is missing, or to which a link leads:
// the mount is on the file of another root then, such as a container's.
func preloadInPlace(path string, text []byte, on bool) error {
	_, err := os.Stat(path)
	made := errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	at, part := int64(0), blanked(text)
	if on {
		at, part = int64(len(text)), withLine(text)[len(text):]
	}
	_, err = f.WriteAt(part, at)
	if made {
		target, e := filepath.EvalSymlinks(path)
		err = errors.Join(err, e, f.Chmod(0o644), safepath.SyncFolder(filepath.Dir(target))) // every user must read it, whatever the umask is
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// replace replaces a file, and keeps its mode.
func replace(path string, text []byte) error {
	mode := fs.FileMode(0o644)
	if st, err := os.Stat(path); err == nil {
		mode = st.Mode().Perm()
	}
	return safepath.Replace(path, text, mode)
}

// mountedOver reports whether any mount namespace has a mount on a path. It returns true if that is
// unknown.
func mountedOver(path string) bool {
	files, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil || len(files) == 0 {
		return true
	}
	seen := map[uint64]bool{} // mount namespaces
	for _, file := range files {
		var ns unix.Stat_t
		if unix.Stat(filepath.Join(filepath.Dir(file), "ns/mnt"), &ns) == nil {
			if seen[ns.Ino] {
				continue
			}
			seen[ns.Ino] = true
		}
		if isMountedIn(file, path) {
			return true
		}
	}
	return false
}

// isMountedIn reports whether a list of mounts has one on a path.
func isMountedIn(mountinfo, path string) bool {
	f, err := os.Open(mountinfo)
	if err != nil {
		return false // the process has ended
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && fields[4] == path {
			return true
		}
	}
	return false
}
