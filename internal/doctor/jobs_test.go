package doctor

import (
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/job"
)

// Jobs that take long do not keep the doctor: those after them are counted.
func TestJobsBudget(t *testing.T) {
	clock := time.Time{}
	for each, want := range map[time.Duration]int{0: 10, jobsBudget / 4: 4, 2 * jobsBudget: 1} {
		checked := 0
		left := checkUntil(func() time.Time { return clock }, jobsBudget, make([]job.Job, 10), func(job.Job) {
			checked++
			clock = clock.Add(each)
		})
		expect.True(t, checked == want && left == 10-want, each, "each", checked, "were checked", left, "left")
	}
}
