package machine

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// However many readers there are, a bounded number of looks is under way, each with a thread; and one that
// does not end keeps no other from its place.
func TestLooksTakePlaces(t *testing.T) {
	places := make(chan struct{}, maxLooking)
	var inside atomic.Int32
	entered, gate := make(chan struct{}, 1000), make(chan struct{})
	var all []*userReader
	for range 5 * maxLooking {
		u := newUserReader(7, "a user", nil)
		u.setPaths(func() []string {
			inside.Add(1)
			entered <- struct{}{}
			<-gate
			inside.Add(-1)
			return nil
		}, nil)
		all = append(all, u)
		u.start(time.Now(), nil, bounds{1, 1}, true, places)
	}
	for range maxLooking {
		<-entered
	}
	for range 1000 {
		runtime.Gosched()
	}
	if n := inside.Load(); n != maxLooking {
		t.Errorf("%d are under way", n)
	}
	over := make(chan struct{})
	close(over)
	for _, u := range all { // nobody waits for these any more, whether they have a place or not
		if answered, _ := u.wait(over); answered {
			t.Error("it has answered")
		}
	}
	u := newUserReader(8, "another", nil)
	u.start(time.Now(), nil, bounds{1, 1}, true, places)
	<-u.done
	close(gate)
	for _, u := range all {
		<-u.done
	}
	for range maxLooking { // all are free again
		places <- struct{}{}
	}
}
