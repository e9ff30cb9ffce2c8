package processes

import (
	"errors"
	"testing"

	"ration/check/observer"
	"ration/internal/abi"
)

// The observer reports a region in which more is granted than the limit allows.
func TestObserverCanFail(t *testing.T) {
	path := newPath(t)
	w := join(t, goOnly(), 0, path, mib)
	o := observe(t, path, 1, mib)
	w.OK("force 0 overhead %d", mib+abi.Unit)
	<-o.Ended() // it ends by itself only with an error
	if err := o.Stop(); !errors.Is(err, observer.ErrViolated) {
		t.Errorf("a limit exceeded by one unit: %v", err)
	}
}

// The comparison of accounts reports a process that died after its charge was applied:
// the bytes are granted until it is reaped, but no slot holds them.
func TestUnbalanced(t *testing.T) {
	path := newPath(t)
	survivor := join(t, goOnly(), 0, path, mib)
	dead := faulty(t, goOnly(), 0, abi.ChangeApplied, 1, "kill")
	dead.join(path, "dead")
	dead.fault("charge 0 data 4096")
	dead.Kill()
	checker := openChecker(t, path)
	defer checker.Close()
	if _, err := checker.Balanced(0); !errors.Is(err, observer.ErrViolated) {
		t.Errorf("a charge that is applied and not booked: %v", err)
	}
	survivor.OK("reap")
	checkUsed(t, path, 0)
}
