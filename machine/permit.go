package machine

import "sync/atomic"

// maxScans is how many scans have a thread at once: a user with a thousand locked regions gets no thousand
// threads. A scan that missed its deadline does not count.
const maxScans = 64

// permit lets one scan run.
type permit struct {
	all   chan struct{} // has an element for each permit that is taken
	over  chan struct{} // closed if the scan misses its deadline before it has a permit
	state atomic.Int32  // 0 before take, 1 while it is taken, 2 after leave
}

// take waits for a permit, or until the scan has missed its deadline.
func (p *permit) take() {
	select {
	case p.all <- struct{}{}:
		if !p.state.CompareAndSwap(0, 1) {
			<-p.all
		}
	case <-p.over:
	}
}

// leave gives it back, once.
func (p *permit) leave() {
	switch p.state.Swap(2) {
	case 0:
		close(p.over)
	case 1:
		<-p.all
	}
}
