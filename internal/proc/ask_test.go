package proc

import (
	"os"
	"sync/atomic"
	"testing"

	"ration/check/expect"
)

// Questions that the kernel does not answer delay no other user's, and only a bounded number of them waits.
func TestAsk(t *testing.T) {
	hang := make(chan struct{})
	late := make(chan int, maxAskedOfUser)
	var started atomic.Int32
	for range maxAskedOfUser + 2 {
		_, answered := askOf(64001, func() int { started.Add(1); <-hang; return 1 }, func(n int) { late <- n })
		expect.True(t, !answered, "a question without an answer was answered")
	}
	expect.True(t, started.Load() == maxAskedOfUser, "questions that wait:", started.Load())
	got, answered := askOf(64002, func() int { return 2 }, nil)
	expect.True(t, answered && got == 2, "another user's question:", got, answered)
	close(hang)
	for range maxAskedOfUser {
		expect.True(t, <-late == 1, "a late answer is lost")
	}
	got, answered = askOf(64001, func() int { return 3 }, nil)
	expect.True(t, answered && got == 3, "a question after those that waited:", got, answered)
	asked.Lock()
	defer asked.Unlock()
	expect.True(t, asked.all == 0 && len(asked.by) == 0, "still counted:", asked.all, asked.by)
}

func TestAskOfProcess(t *testing.T) {
	got, answered := Ask(os.Getpid(), func() int { return 1 }, nil)
	expect.True(t, answered && got == 1, got, answered)
}
