package node

import "sync"

// bookingQueue has the claims of this process that are to be booked. All claims of a node wait for each other there, and
// each reads the records of all others. So the first that gets the lock books all that wait, one after the other, with
// the records read once.
type bookingQueue struct {
	lead    sync.Mutex // held by the call that books; taken before mutex
	mutex   sync.Mutex
	waiting []*booking // guarded by mutex
}

// booking is a record that is to be put in place, if its claim fits beside the others.
type booking struct {
	record *Record
	place  func() error // waits for no disk
	done   bool         // guarded by lead
	err    error        // guarded by lead
}

// reserve puts a record in place, if its claim fits beside the others.
func (n *Node) reserve(l *claimLock, r *Record, place func() error) error {
	b, q := &booking{record: r, place: place}, &n.booking
	q.mutex.Lock()
	q.waiting = append(q.waiting, b)
	q.mutex.Unlock()
	q.lead.Lock()
	defer q.lead.Unlock()
	if !b.done {
		q.mutex.Lock()
		batch := q.waiting
		q.waiting = nil
		q.mutex.Unlock()
		n.bookAll(l, batch)
	}
	return b.err
}

// bookAll books claims, of which l is the lock of one. The other calls wait, with the locks of their claims.
func (n *Node) bookAll(l *claimLock, batch []*booking) {
	release, err := l.reserve()
	var records []*Record
	if err == nil {
		defer release()
		records, err = n.Records()
	}
	for _, b := range batch {
		b.done, b.err = true, err
		if err != nil {
			continue
		}
		others := without(records, b.record.Plan.UID)
		if b.err = n.bookBeside(b, others); b.err == nil {
			records = append(others, b.record) // the next are booked beside it
		} // else beside the record that it has, if it has one
	}
}

// without returns the records of all claims but one.
func without(records []*Record, uid string) (out []*Record) {
	for _, r := range records {
		if r.Plan.UID != uid {
			out = append(out, r)
		}
	}
	return out
}

// bookBeside books a claim, if it fits beside the records of all others.
func (n *Node) bookBeside(b *booking, others []*Record) error {
	if err := n.checkRoom(b.record.Plan, b.record.Extra, others); err != nil {
		return err
	}
	if err := checkContainers(b.record.Plan, others); err != nil {
		return err
	}
	return b.record.wrap(b.place())
}
