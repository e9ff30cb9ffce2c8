package processes

import (
	"errors"
	"testing"

	"ration/check/harness"
	"ration/check/observer"
	"ration/internal/abi"
)

// The observer reports a region in which more is granted than the limit allows.
func TestObserverCanFail(t *testing.T) {
	path := newPath(t)
	w := join(t, harness.GoOnly(), 0, path, mib)
	o := harness.Observe(t, path, 1, mib)
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
	survivor := join(t, harness.GoOnly(), 0, path, mib)
	dead := harness.Start(t, harness.GoOnly().Of(0).Fault, harness.Fault(abi.ChangeApplied, 1, "kill"))
	dead.OK("open %s", path)
	dead.OK("claim dead")
	dead.Tell("charge 0 data 4096")
	if a, alive := dead.AnswerIfAlive(); alive {
		t.Fatalf("it is alive, and answers %s", a)
	}
	dead.Kill()
	checker, err := observer.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer checker.Close()
	if _, err := checker.Balanced(0); !errors.Is(err, observer.ErrViolated) {
		t.Errorf("a charge that is applied and not booked: %v", err)
	}
	survivor.OK("reap")
	if used := balanced(t, path)[0]; used != 0 {
		t.Errorf("%d bytes are still granted", used)
	}
}
