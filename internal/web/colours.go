package web

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"

	"ration/machine"
)

// The jobs that hold the most memory get a colour. All others share one grey, because more colours
// could not be distinguished. A job keeps its colour while it is among the first 2*colourCount, and
// while no job without a colour holds twice as much. So colours do not flicker between two jobs of
// about the same size.
const (
	colourCount = 8
	noColour    = "cx"
)

// elementID returns the id of a job's element. If two elements have the same id, the second is not
// shown. Users choose paths and times of their jobs, and must not be able to produce the id of
// another user's job.
func elementID(id machine.JobID) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", id.Path, id.Created.UnixNano()))
	return fmt.Sprintf("job-%x", sum[:12])
}

type colours struct {
	of map[machine.JobID]int
}

func newColours() *colours { return &colours{of: map[machine.JobID]int{}} }

// assign gives colours to the jobs that hold the most.
func (c *colours) assign(jobs []machine.Job) {
	var all []*machine.Job
	held := map[machine.JobID]uint64{}
	for i := range jobs {
		if j := &jobs[i]; j.State != machine.Ended {
			all = append(all, j)
			held[j.ID()] = j.Held()
		}
	}
	slices.SortStableFunc(all, func(a, b *machine.Job) int { return cmp.Compare(held[b.ID()], held[a.ID()]) })
	rank := map[machine.JobID]int{}
	for i, j := range all {
		rank[j.ID()] = i
	}
	var owner [colourCount]*machine.JobID
	for key, n := range c.of {
		if at, there := rank[key]; !there || at >= 2*colourCount {
			delete(c.of, key)
		} else {
			owner[n] = &key
		}
	}
	for _, j := range all[:min(len(all), colourCount)] {
		key := j.ID()
		if _, has := c.of[key]; has {
			continue
		}
		n := slices.Index(owner[:], nil)
		if n < 0 { // the job with a colour that holds least loses it, if it holds much less
			n = 0
			for i := range owner {
				if rank[*owner[i]] > rank[*owner[n]] {
					n = i
				}
			}
			if held[key] < 2*held[*owner[n]] {
				continue
			}
			delete(c.of, *owner[n])
		}
		c.of[key], owner[n] = n, &key
	}
}

// class returns the class of a job's colour.
func (c *colours) class(k machine.JobID) string {
	if n, has := c.of[k]; has {
		return fmt.Sprintf("c%d", n)
	}
	return noColour
}
