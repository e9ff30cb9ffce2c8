package test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"ration/test/harness"
)

// A process that has no descriptor left cannot ask for another one by /proc. Not
// to be able to ask is no answer: a living process that has lost its lock keeps
// what it holds, and one that is gone is still known to be.
func TestNoDescriptorToAskWith(t *testing.T) {
	harness.Mixes(t, func(t *testing.T, mix harness.Mix) {
		path := newPath(t)
		careless := join(t, mix, 0, path, mib)
		careless.OK("charge 0 data %d", mib)
		careless.OK("touch")
		asker := join(t, mix, 1, path)
		asker.OK("exhaust")
		if n := asker.OK("reap").Int("slots"); n != 0 {
			t.Errorf("%d living processes reaped", n)
		}
		if got := asker.Ask("charge 0 data 1"); got.Verdict() != "refused" {
			t.Errorf("a charge while a living process holds everything: %s", got)
		}
		if used := balanced(t, path)[0]; used != mib {
			t.Errorf("%d bytes granted where %d are held", used, mib)
		}
		careless.Kill()
		asker.OK("charge 0 data %d", mib)
		asker.Quit()
		checkEmpty(t, path)
	})
}

// The same where the region's own descriptor is gone and cannot be opened again:
// nobody is judged, and a claim says that it could not ask.
func TestNoDescriptorOfTheRegion(t *testing.T) {
	harness.Mixes(t, func(t *testing.T, mix harness.Mix) {
		path := newPath(t)
		careless := join(t, mix, 0, path, mib)
		careless.OK("charge 0 data %d", mib)
		careless.OK("touch")
		asker := start(t, mix, 1)
		asker.OK("open %s", path)
		asker.OK("lose %s", filepath.Join(filepath.Dir(path), "other"))
		asker.OK("exhaust")
		if got := asker.Ask("claim asker"); got.Verdict() != "error" || got.Code() == "full" {
			t.Errorf("a claim without a lock: %s", got)
		}
		if n := asker.OK("reap").Int("slots"); n != 0 {
			t.Errorf("%d living processes reaped", n)
		}
		if used := balanced(t, path)[0]; used != mib {
			t.Errorf("%d bytes granted where %d are held", used, mib)
		}
	})
}

// Limits that an operator put beside a region count also where this process may
// not look whether they are there.
func TestLimitsThatCannotBeAskedFor(t *testing.T) {
	harness.Mixes(t, func(t *testing.T, mix harness.Mix) {
		// A name as long as a file's may be: that of the limits is longer.
		path := filepath.Join(filepath.Dir(newPath(t)), fmt.Sprintf("%0255d", 0))
		w := start(t, mix, 0)
		if got := w.Ask("open %s 0=%d", path, mib); got.Verdict() != "error" {
			t.Errorf("a region whose limits cannot be looked for: %s", got)
		}
	})
}

// A process of another user may not see what this one has mapped. That is no sign
// that it has become another program.
func TestMapsThatMayNotBeRead(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run a worker as another user")
	}
	harness.Mixes(t, func(t *testing.T, mix harness.Mix) {
		path := newPath(t)
		careless := join(t, mix, 0, path, mib)
		careless.OK("charge 0 data %d", mib)
		careless.OK("touch")
		if err := errors.Join(os.Chmod(filepath.Dir(path), 0o755), os.Chmod(path, 0o666)); err != nil {
			t.Fatal(err)
		}
		asker := start(t, mix, 1, func(c *exec.Cmd) {
			c.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		})
		asker.OK("open %s", path)
		asker.OK("claim asker")
		if got := asker.Ask("charge 0 data 1"); got.Verdict() != "refused" {
			t.Errorf("a charge while a living process holds everything: %s", got)
		}
		careless.Kill()
		asker.OK("charge 0 data %d", mib)
		asker.Quit()
		checkEmpty(t, path)
	})
}
