package policy

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ration/internal/connlimit"
	"ration/internal/job"
)

// queue has the users that wait.
type queue struct {
	mu    sync.Mutex
	users map[int]*waitingUser // guarded by mu

	publishing sync.Mutex // held while the file for users is written
}

// waitingUser is a user with clients that wait.
type waitingUser struct {
	clients []job.Client  // in the order in which they came; guarded by queue.mu
	absent  bool          // guarded by queue.mu: the clients waited for the service before this one, and none has come yet
	ticket  *job.Ticket   // guarded by queue.mu; nil while there is none
	left    chan struct{} // closed when there are no clients
	ended   chan struct{} // closed when the user has the job, or was refused it
	err     error         // valid after ended is closed

	now atomic.Pointer[position] // nil at first
}

// publishQueue writes the file in which users find their place in the queue.
func (k *keeper) publishQueue() {
	k.queue.publishing.Lock()
	defer k.queue.publishing.Unlock()
	k.queue.mu.Lock()
	clients := map[int][]job.Client{}
	for uid, w := range k.queue.users {
		clients[uid] = slices.Clone(w.clients)
	}
	k.queue.mu.Unlock()
	if err := job.PublishWaiting(clients); err != nil && k.mayLog(0) {
		k.log.Error("writing which users wait", "error", err)
	}
}

// enter adds a client of a user. The first one takes a ticket for the user.
func (k *keeper) enter(m *mustWait, c job.Client, user *connlimit.User) *waitingUser {
	k.queue.mu.Lock()
	w := k.queue.users[m.uid]
	if w == nil {
		w = &waitingUser{left: make(chan struct{}), ended: make(chan struct{})}
		k.queue.users[m.uid] = w
		k.noteWaits(m)
		go k.awaitRoom(w, m, c.PID, user)
	}
	if w.absent {
		w.clients, w.absent = nil, false
	}
	w.clients = append(w.clients, c)
	k.changed(w, user)
	return w
}

// leave removes a client.
func (k *keeper) leave(uid int, w *waitingUser, c job.Client, user *connlimit.User) {
	k.queue.mu.Lock()
	i := slices.Index(w.clients, c)
	w.clients = slices.Delete(w.clients, i, i+1)
	k.endUnlessWaits(uid, w)
	k.changed(w, user)
}

// endUnlessWaits removes a user without clients. The caller holds queue.mu.
func (k *keeper) endUnlessWaits(uid int, w *waitingUser) {
	if len(w.clients) == 0 {
		delete(k.queue.users, uid)
		close(w.left)
	}
}

// changed says which clients of a user wait now. It unlocks queue.mu, which the caller holds. To say it counts as the user's
// time: a user can come and go without end. It does not wait for that: a client that enters gets its first line at once.
func (k *keeper) changed(w *waitingUser, user *connlimit.User) {
	k.nameClient(w)
	publish := w.ticket != nil // otherwise awaitTurn does, which takes it or has left it
	k.queue.mu.Unlock()
	if publish {
		go user.Do(k.publishQueue)
	}
}

// nameClient writes in a user's ticket which client waits: the one that took it may have left. The caller holds queue.mu.
func (k *keeper) nameClient(w *waitingUser) {
	if w.ticket == nil || len(w.clients) == 0 {
		return
	}
	if err := w.ticket.SetClient(w.clients[0]); err != nil && k.mayLog(0) {
		k.log.Error("writing which program waits", "error", err)
	}
}

// setTicket sets the ticket of a user, nil before it is left. Clients may have come and gone while it was taken.
func (k *keeper) setTicket(w *waitingUser, t *job.Ticket) {
	k.queue.mu.Lock()
	defer k.queue.mu.Unlock()
	w.ticket = t
	k.nameClient(w)
}

// comeAgain is how long clients ask again after the service has ended (shim/userjob.c).
const comeAgain = 10 * time.Second

// resumeQueue gives the users that waited when the last service ended their places, until their clients have come again.
func (k *keeper) resumeQueue() {
	var start []func() // each writes the list of those that wait: when all have their tickets, as the next service reads it
	for _, was := range job.WaitingUsers() {
		m := &mustWait{uid: was.UID, wants: was.Wants, wakes: was.Wakes, asked: true}
		ticket, err := job.Enqueue(was.Waiting)
		w := &waitingUser{clients: was.Clients, absent: true, left: make(chan struct{}), ended: make(chan struct{})}
		k.queue.users[was.UID] = w
		start = append(start, func() { k.awaitTurn(w, m, was.Waiting, ticket, err, nil) })
		time.AfterFunc(comeAgain, func() { k.giveUp(was.UID, w) })
	}
	for _, wait := range start {
		go wait()
	}
}

// giveUp removes the clients of a user of which none has come again.
func (k *keeper) giveUp(uid int, w *waitingUser) {
	k.queue.mu.Lock()
	defer k.queue.mu.Unlock()
	if w.absent {
		w.clients, w.absent = nil, false
		k.endUnlessWaits(uid, w)
	}
}
