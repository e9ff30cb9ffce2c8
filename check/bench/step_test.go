package bench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/region"
)

// A step is the one that was seen in production: 20 allocations forward and 40 backward, 8 at once, 10
// frees in the optimiser, and the rest. What is held is looked at whenever the device has work.
func TestStep(t *testing.T) {
	r, err := region.Open(filepath.Join(t.TempDir(), "region"), region.Options{})
	expect.OK(t, err)
	defer r.Close()
	s, err := r.Claim(t.Name())
	expect.OK(t, err)
	var held []int
	defer func(f func(time.Duration)) { stepSleep = f }(stepSleep)
	stepSleep = func(time.Duration) { held = append(held, int(r.Used(0)/tensor)) }
	w := &worker{r: r, slots: []*region.Slot{s}, out: bufio.NewWriter(io.Discard)}
	expect.OK(t, w.steps(1))
	want := []int{5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 68, 58}
	expect.True(t, slices.Equal(held, want) && r.Used(0) == 0, "held", held, "at the end", r.Used(0), "bytes")
	expect.True(t, forward == 20 && backward == 40 && allReduce == 8 && optimiser == 10, "the step is another one")
}

// The worker in C replays the same step.
func TestStepInC(t *testing.T) {
	source, err := os.ReadFile("../programs/benchworker/benchworker.c")
	expect.OK(t, err)
	for name, want := range map[string]int{"FORWARD": forward, "BACKWARD": backward, "ALL_REDUCE": allReduce, "OPTIMISER": optimiser, "BURST": burst} {
		got := regexp.MustCompile(`[ {]`+name+` = (\d+)`).FindAllSubmatch(source, -1)
		expect.True(t, len(got) == 1 && string(got[0][1]) == fmt.Sprint(want), name, "is", got, "not", want)
	}
}
