package job

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/testenv"
)

// commandOf makes a file in a folder of a user's, and starts a process of that user that has inherited a lock on it, as
// the command of a job has.
func commandOf(t *testing.T, folder string, uid int) (alive string, pid int) {
	t.Helper()
	alive = filepath.Join(folder, aliveName)
	expect.OK(t, errors.Join(os.Mkdir(folder, 0o755), os.WriteFile(alive, nil, 0o644), os.Chown(folder, uid, uid), os.Chown(alive, uid, uid)))
	f, err := os.Open(alive)
	expect.OK(t, err)
	defer f.Close()
	lock := wholeFile(shared)
	expect.OK(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock))
	cmd := exec.Command("sleep", "60")
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	expect.OK(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	return alive, cmd.Process.Pid
}

// A process of root that has locked a file of a user's, as a daemon for mail or printing does, is in no job of that
// user's, whatever the user calls the file.
func TestHostileRegionOfAnotherProgram(t *testing.T) {
	testenv.NeedsRoot(t, "only root has files of two users")
	const anna = 64001
	path := filepath.Join(t.TempDir(), "train", RegionName)
	expect.OK(t, errors.Join(os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, make([]byte, 100), 0o600)))
	_, pid := startMember(t, path, 60)
	all := Members(Job{Path: path})
	expect.True(t, len(all) == 1 && all[0].PID == pid, "in root's own folder", all)
	CloseMembers(all)
	expect.OK(t, errors.Join(os.Chown(filepath.Dir(path), anna, anna), os.Chown(path, anna, anna)))
	all = Members(Job{Path: path})
	expect.Equal(t, len(all), 0, "in a folder of a user's")
}

// A user's job has only processes of that user, whatever the user puts into the job's folder, or in its place. Root
// ends what Members returns.
func TestHostileMembers(t *testing.T) {
	testenv.NeedsRoot(t, "only root has files of two users")
	const anna, ben = 64001, 64002
	for name, attack := range map[string]func(folder, bens string) error{
		"a link, and no region": func(folder, bens string) error {
			return errors.Join(os.Remove(filepath.Join(folder, aliveName)), os.Symlink(filepath.Join(bens, aliveName), filepath.Join(folder, aliveName)))
		},
		"a link for the folder": func(folder, bens string) error {
			return errors.Join(os.Rename(folder, folder+"2"), os.Symlink(bens, folder))
		},
		"files of another user": func(folder, bens string) error { // where fs.protected_hardlinks is 0
			return errors.Join(os.Remove(filepath.Join(folder, aliveName)), os.Link(filepath.Join(bens, aliveName), filepath.Join(folder, aliveName)),
				os.Link(filepath.Join(bens, RegionName), filepath.Join(folder, RegionName)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			expect.OK(t, os.Chmod(dir, 0o777|os.ModeSticky))
			bens := filepath.Join(dir, "ben")
			_, bensPID := commandOf(t, bens, ben)
			expect.OK(t, errors.Join(os.WriteFile(filepath.Join(bens, RegionName), nil, 0o600), os.Chown(filepath.Join(bens, RegionName), ben, ben)))
			parent := filepath.Join(dir, "anna")
			expect.OK(t, errors.Join(os.Mkdir(parent, 0o755), os.Chown(parent, anna, anna)))
			folder := filepath.Join(parent, "train")
			_, annasPID := commandOf(t, folder, anna)
			members := func() (pids []int) {
				all := Members(Job{Path: filepath.Join(folder, RegionName)})
				defer CloseMembers(all)
				for _, m := range all {
					pids = append(pids, m.PID)
				}
				return pids
			}
			expect.True(t, slices.Equal(members(), []int{annasPID}), "before")
			expect.OK(t, attack(folder, bens))
			expect.True(t, !slices.Contains(members(), bensPID), "a process of another user is a member")
		})
	}
}
