package policy

import (
	"testing"
	"testing/synctest"
	"time"

	"ration/check/expect"
)

// A machine that cannot be read keeps nobody waiting, and what was found before counts as long as it may.
func TestLookHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, warned := make(chan struct{}), 0
		first := &seen{at: time.Now(), held: &holdings{}, asleep: map[string]bool{"a": true}}
		l := looker{last: first, read: func() *seen {
			<-hang
			return &seen{at: time.Now(), held: &holdings{}}
		}}
		l.warnTo(func(string) { warned++ })
		took := func(most time.Duration) *seen {
			began := time.Now()
			found := l.around()
			expect.Equal(t, time.Since(began), most)
			return found
		}
		expect.True(t, took(0) == first)
		time.Sleep(lookAgain)
		expect.True(t, took(lookMost) == first && took(0) == first, "it is young enough to count")
		time.Sleep(heldFor)
		found := took(0)
		expect.True(t, found.held == nil && len(found.asleep) == 0 && warned == 1, found, warned)
		close(hang)
		synctest.Wait()
		expect.True(t, took(0).held != nil && l.late, "it took too long")
		time.Sleep(lookAgain)
		expect.True(t, took(0).held != nil && !l.late)
	})
}
