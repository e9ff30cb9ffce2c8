package test

import (
	"errors"
	"testing"

	"ration/internal/abi"
	"ration/test/harness"
	"ration/test/watch"
)

// An observer that cannot fail proves nothing: shown a region in which more is
// booked than the limit allows, it says so.
func TestObserverCanFail(t *testing.T) {
	path := newPath(t)
	w := join(t, harness.Native(), 0, path, mib)
	observer := harness.Observe(t, path, 1, mib)
	w.OK("book 0 overhead %d", mib+abi.Unit)
	// Another look, of our own, so that the observer's last one is not too early.
	eye, err := watch.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer eye.Close()
	if err := eye.Look(0, mib); !errors.Is(err, watch.ErrViolated) {
		t.Errorf("a limit passed by one unit: %v", err)
	}
	// The observer looks for as long as it is let: until it has seen this.
	<-observer.Ended()
	if _, err := observer.Verdict(); !errors.Is(err, watch.ErrViolated) {
		t.Errorf("the observer saw nothing: %v", err)
	}
}

// So does the comparison of books: a process that died with bytes in hand has
// them granted until somebody reaps it, and slots that hold less.
func TestBooksCanDisagree(t *testing.T) {
	path := newPath(t)
	survivor := join(t, harness.Native(), 0, path, mib)
	dead := harness.Start(t, harness.Native().Of(0).Fault, harness.Fault(abi.ChangeApplied, 1, "kill"))
	dead.OK("open %s", path)
	dead.OK("claim dead")
	dead.Send("charge 0 data 4096")
	if a, alive := dead.Hear(); alive {
		t.Fatalf("it lives, and says %s", a)
	}
	dead.Kill()
	eye, err := watch.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer eye.Close()
	if _, err := eye.Books(0); !errors.Is(err, watch.ErrViolated) {
		t.Errorf("an applied charge that nobody booked: %v", err)
	}
	survivor.OK("reap")
	if used := agree(t, path)[0]; used != 0 {
		t.Errorf("%d bytes are still granted", used)
	}
}
