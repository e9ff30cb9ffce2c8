package cli

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"ration/check/expect"
)

// Users whose jobs do not wake cost a minute altogether, and leave others a part of it.
func TestWakeBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		b := wakeBudget{began.Add(wakeLeftTime), map[uint32]bool{}}
		asleep := func(most time.Duration) error {
			time.Sleep(most)
			return fmt.Errorf("as user: %w", context.DeadlineExceeded)
		}
		awake := func(most time.Duration) error { time.Sleep(time.Second); return nil }
		err := b.spend(1, asleep)
		expect.True(t, err != nil && err.Error() == "it did not wake in 30 s", err)
		err = b.spend(1, awake)
		expect.True(t, err != nil && time.Since(began) == 30*time.Second, "a user gets time again", err, time.Since(began))
		expect.OK(t, b.spend(2, awake))
		for uid := range uint32(20) {
			expect.True(t, b.spend(3+uid, asleep) != nil)
		}
		expect.True(t, b.spend(2, awake) != nil && time.Since(began) <= wakeLeftTime, time.Since(began))
	})
}
