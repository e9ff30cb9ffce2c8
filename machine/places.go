package machine

import "sync/atomic"

// maxLooking is how many looks have a thread at once, but for those that nobody waits for any more.
const maxLooking = 64

// lookPlace is the place of one look.
type lookPlace struct {
	all   chan struct{} // has one for each place that is taken
	over  chan struct{} // closed where nobody waits for the look before it has a place
	state atomic.Int32  // 0 while it has none yet, 1 while it has, 2 when it was left
}

// take waits for a place, or until that is not worth while any more.
func (p *lookPlace) take() {
	select {
	case p.all <- struct{}{}:
		if !p.state.CompareAndSwap(0, 1) {
			<-p.all
		}
	case <-p.over:
	}
}

// leave leaves it, once.
func (p *lookPlace) leave() {
	switch p.state.Swap(2) {
	case 0:
		close(p.over)
	case 1:
		<-p.all
	}
}
