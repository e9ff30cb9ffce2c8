package processes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/region"
)

// A process that has no descriptor left cannot ask /proc about another one. A failure
// to ask is not an answer: a living process that has lost its lock keeps what it
// holds, and one that is gone is still found to be gone.
func TestNoDescriptorToAskWith(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		careless := join(t, mix, 0, path, mib)
		careless.OK("charge 0 data %d", mib)
		careless.OK("touch")
		asker := join(t, mix, 1, path)
		asker.OK("exhaust")
		asker.reaps(0)
		asker.Ask("charge 0 data 1").want("refused", "a charge while a living process holds everything")
		checkUsed(t, path, mib)
		careless.Kill()
		asker.OK("charge 0 data %d", mib)
		finish(t, path, asker)
	})
}

// The same if the region's own descriptor is gone and cannot be opened again: no process
// is taken for dead, and the error of a claim says that it could not ask.
func TestNoDescriptorOfTheRegion(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		careless := join(t, mix, 0, path, mib)
		careless.OK("charge 0 data %d", mib)
		careless.OK("touch")
		asker := start(t, mix, 1)
		asker.OK("open %s", path)
		asker.OK("lose %s", filepath.Join(filepath.Dir(path), "other"))
		asker.OK("exhaust")
		got := asker.Ask("claim asker")
		expect.True(t, got.Verdict() == "error" && got.Code() != "full", "a claim without a lock", got)
		asker.reaps(0)
		checkUsed(t, path, mib)
	})
}

// A process that cannot find out whether an operator put limits beside a region does not
// use the region, be it new or not. Nor does it record in a new one that there are none: limits
// that are put there are in force, and missed when they are removed.
func TestLimitsThatCannotBeAskedFor(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		// The longest name a file may have: the name of the limits file would be longer.
		long := filepath.Join(filepath.Dir(path), fmt.Sprintf("%0255d", 0))
		asks := func(path, want, when string) {
			t.Helper()
			w := start(t, mix, 0)
			w.Ask("open %s 0=%d", path, mib).want(want, when)
			w.Kill()
		}
		asks(path, "ok", "a region")
		expect.OK(t, os.Rename(path, long))
		asks(long, "error", "a region whose limits cannot be looked for")
		expect.OK(t, os.Remove(long))
		asks(long, "error", "a new region whose limits cannot be looked for")
		if err := os.Rename(long, path); !errors.Is(err, os.ErrNotExist) {
			expect.OK(t, err)
		}
		expect.OK(t, region.WriteLimitsFile(path, region.Limits{}))
		asks(path, "ok", "a region with limits beside it")
		expect.OK(t, os.Remove(path+region.LimitsSuffix))
		asks(path, "error", "a region whose limits were removed")
	})
}

// A process may not read the mappings of another user's process. It must not conclude that
// the other process has become another program.
func TestMapsThatMayNotBeRead(t *testing.T) {
	testenv.NeedStart(t)
	testenv.NeedsRoot(t, "only root can run a worker as another user")
	for name, owner := range map[string]option{
		"of root":             asUser(0),
		"of an ordinary user": asUser(1001),
		// 1000 there, and 1001 here.
		"of a user with another number": func(c *exec.Cmd) {
			asUser(1000)(c)
			c.SysProcAttr.Credential.Gid = 0
			c.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
			c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{Size: 1}, {ContainerID: 1000, HostID: 1001, Size: 1}}
			c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{Size: 1}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			if w, err := tryStart(t, 0, inGo.plain, owner); err != nil {
				t.Skipf("no process of such a user: %v", err)
			} else {
				w.Quit()
			}
			eachMix(t, func(t *testing.T, mix impls) {
				path := newPath(t)
				start(t, mix, 0).OK("open %s 0=%d", path, mib)
				expect.OK(t, errors.Join(os.Chmod(filepath.Dir(path), 0o755), os.Chmod(path, 0o666)))
				careless := start(t, mix, 0, owner)
				careless.join(path, "careless")
				careless.OK("charge 0 data %d", mib)
				careless.OK("touch")
				asker := start(t, mix, 1, asUser(nobody))
				asker.join(path, "asker")
				asker.Ask("charge 0 data 1").want("refused", "a charge while a living process holds everything")
				careless.Kill()
				asker.OK("charge 0 data %d", mib)
				finish(t, path, asker)
			})
		})
	}
}

const nobody = 65534

// asUser starts a worker as another user, which only root can.
func asUser(uid uint32) option {
	return func(c *exec.Cmd) { c.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: nobody} }
}

// setUIDProgram returns a command that answers ok and goes on, acting as its owner: cat,
// of a file and of its input.
func setUIDProgram(t *testing.T, owner int) string {
	cat, err := exec.LookPath("cat")
	expect.OK(t, err)
	program, err := os.ReadFile(cat)
	dir, err2 := os.MkdirTemp("", "ration-test-")
	expect.OK(t, errors.Join(err, err2))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path, answer := filepath.Join(dir, "cat"), filepath.Join(dir, "answer")
	err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(answer, []byte("ok\n"), 0o644), os.WriteFile(path, program, 0o755),
		os.Chown(path, owner, nobody), os.Chmod(path, 0o755|os.ModeSetuid))
	expect.OK(t, err)
	return path + " " + answer + " -"
}

// actsAs returns the effective user of a process.
func actsAs(t *testing.T, pid int) (uid uint32) {
	var own uint32
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, line, _ := strings.Cut(string(status), "\nUid:")
	_, scanErr := fmt.Sscan(line, &own, &uid)
	expect.Must(t, errors.Join(err, scanErr) == nil, "reading the effective user of process", pid, err, scanErr)
	return uid
}

// A process that became a set-uid program holds nothing. Only root may see what it has mapped,
// but its effective user shows that it became another program. That is no evidence if root
// started it: root may change its user without another program.
func TestSetUIDProgram(t *testing.T) {
	testenv.NeedStart(t)
	testenv.NeedsRoot(t, "only root can make a program of root's for another user")
	for _, tt := range []struct {
		name         string
		uid, becomes uint32
		want         string
	}{
		{"an ordinary user acts as root", 1000, 0, "ok"},
		{"an ordinary user acts as another one", 1000, 1001, "ok"},
		{"root acts as an ordinary user", 0, 1001, "refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			program := setUIDProgram(t, int(tt.becomes))
			eachMix(t, func(t *testing.T, mix impls) {
				path := newPath(t)
				expect.OK(t, os.Chmod(filepath.Dir(path), 0o777))
				holder := start(t, mix, 0, asUser(tt.uid))
				holder.join(path, "holder", mib)
				holder.OK("charge 0 data %d", mib)
				expect.OK(t, os.Chmod(path, 0o666))
				holder.OK("become %s", program)
				if got := actsAs(t, holder.PID()); got == tt.uid {
					t.Skipf("%s is on a file system without set-uid programs", program)
				}
				asker := start(t, mix, 1, asUser(1000))
				asker.join(path, "asker")
				asker.Ask("charge 0 data %d", mib).want(tt.want, "a charge of what the program before held")
			})
		})
	}
}
