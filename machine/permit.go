package machine

import "sync/atomic"

// maxScans bounds the scans that have a thread at the same time, so that a user with a thousand
// locked regions does not get a thousand threads. A scan that missed its deadline does not count.
const maxScans = 32

// permit lets one scan run.
type permit struct {
	all   chan struct{} // holds an element for each permit in use
	over  chan struct{} // closed if the scan misses its deadline while it waits for a permit
	state atomic.Int32  // 0 before take, 1 after take, 2 after leave
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

// leave returns the permit, once.
func (p *permit) leave() {
	switch p.state.Swap(2) {
	case 0:
		close(p.over)
	case 1:
		<-p.all
	}
}
