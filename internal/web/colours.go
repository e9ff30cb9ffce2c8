package web

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"

	"ration/machine"
)

// Colours are for the jobs that hold most. All others are grey, together: more would not be told
// apart. A job keeps its colour while it is among twice as many, and none that has no colour holds
// twice as much: so that it does not flicker between two that hold about the same.
const (
	colourCount = 8
	noColour    = "cx"
)

// jobKey names a job for good: another of its name is another one.
type jobKey struct {
	path    string
	created int64
}

func keyOf(j *machine.Job) jobKey { return jobKey{j.Path, j.Created} }

// id is the id of a job's element. Paths are long, and others have chosen them, as they have the times:
// of two with one id the second is not shown, so nobody must be able to make another's.
func (k jobKey) id() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", k.path, k.created))
	return fmt.Sprintf("job-%x", sum[:12])
}

type colours struct {
	of map[jobKey]int
}

func newColours() *colours { return &colours{of: map[jobKey]int{}} }

// assign gives colours to the jobs that hold most.
func (c *colours) assign(jobs []machine.Job) {
	var all []*machine.Job
	held := map[jobKey]uint64{}
	for i := range jobs {
		if j := &jobs[i]; j.State != machine.Ended {
			all = append(all, j)
			held[keyOf(j)] = heldBytes(j)
		}
	}
	slices.SortStableFunc(all, func(a, b *machine.Job) int { return cmp.Compare(held[keyOf(b)], held[keyOf(a)]) })
	rank := map[jobKey]int{}
	for i, j := range all {
		rank[keyOf(j)] = i
	}
	var owner [colourCount]*jobKey
	for key, n := range c.of {
		if at, there := rank[key]; !there || at >= 2*colourCount {
			delete(c.of, key)
		} else {
			owner[n] = &key
		}
	}
	for _, j := range all[:min(len(all), colourCount)] {
		key := keyOf(j)
		if _, has := c.of[key]; has {
			continue
		}
		n := slices.Index(owner[:], nil)
		if n < 0 { // the one that holds least gives its colour up, if that is little
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
func (c *colours) class(k jobKey) string {
	if n, has := c.of[k]; has {
		return fmt.Sprintf("c%d", n)
	}
	return noColour
}

func heldBytes(j *machine.Job) (n uint64) {
	for i := range j.Devices {
		n += j.Devices[i].Used
	}
	return n
}
