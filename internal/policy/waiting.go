package policy

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"ration/internal/abi"
	"ration/internal/connlimit"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/region"
)

// Users whose rule has when_full = "wait" wait for room in root's queue, the one of ration run --wait. The service
// holds one ticket for each such user. PROTOCOL.md (*Waiting*) gives the steps, and the state after a crash.

// waitWord at the end of a request for the user's job says that the client can wait. It begins the line that the
// client then gets before the answer.
const waitWord = "wait"

// tryAgain is how often the first in the queue looks for room. Many things make some: a process that ends, a run, a
// change of the policy.
const tryAgain = 200 * time.Millisecond

// mustWait is the error for a user that waits for a ration.
type mustWait struct {
	uid   int
	at    region.Place
	wants map[int]uint64 // as in job.Waiting
	place int            // in the queue, as the client is told first
	why   string
	wakes bool // the user's job sleeps, and its ration is lent
	asked bool // the client waits by its own wish (ration run --wait), whatever the rule says
}

func (e *mustWait) Error() string { return e.why }

// errGone is returned if no client waits any more.
var errGone = errors.New("the client has gone")

// position is what the clients of a user are told: the place in the queue, and why.
type position struct {
	place int
	why   string
}

// tellEvery is how often clients are told of a better place in the queue.
const tellEvery = time.Second

// waits reports whether a user's rule lets programs wait.
func (r *rations) waits(uid int) bool {
	rule, err := r.ruleOf(uid)
	return err == nil && rule.Waits
}

// ensureOrWait makes the job of m's user for a client that can wait. It returns a mustWait if there is no room, or if
// others wait already.
func (r *rations) ensureOrWait(m *mustWait) error {
	if !r.waits(m.uid) && !m.asked {
		return r.ensureNow(m.uid, m.at)
	}
	all, err := job.Queue(job.Folder())
	if err != nil || len(all) == 0 {
		err := r.ensureIfRoom(m)
		var first *mustWait
		if errors.As(err, &first) {
			first.place, first.why = 1, placeText(1)+"; "+first.why
		}
		return err
	}
	place := placeOf(all, m.uid)
	why := placeText(place)
	if full := r.fullNow(m); full != nil {
		why += "; " + whyFull(full)
	}
	later := r.mustWait(m, why)
	later.place = place
	return later
}

// fullNow returns why there is no room for the ration of m's user, as things are: nobody loses a ration for it.
func (r *rations) fullNow(m *mustWait) error {
	l, want, err := r.wholeRation(m.uid)
	if err != nil || r.policy.Overbook {
		return nil
	}
	if m.at != 0 {
		l, want = l.Restrict(m.at), 0
	}
	b, placed := r.beside(m.uid), l
	if want != 0 {
		at, _ := launch.Choose(want, r.candidates(l, b, nil), inNoRation)
		placed = l.Restrict(at)
	}
	err = r.checkBeside(placed, b, nil)
	var full *noRoom
	if errors.As(err, &full) && want == 1 {
		full.among = 0
		for d := range r.totals() {
			if l.MayUse(d) {
				full.among++
			}
		}
	}
	return err
}

func placeText(place int) string { return fmt.Sprintf("place %d in the queue (ration queue)", place) }

// placeOf returns the place of a user in the queue: the clients of a user share a ticket.
func placeOf(all []job.Waiting, uid int) int {
	if at := slices.IndexFunc(all, func(w job.Waiting) bool { return w.UID == uid }); at >= 0 {
		return at + 1
	}
	return len(all) + 1
}

// mustWait returns m with what its user waits for.
func (r *rations) mustWait(m *mustWait, why string) *mustWait {
	return &mustWait{uid: m.uid, at: m.at, asked: m.asked, wants: r.wants(m.uid, m.at), wakes: lent(m.uid), why: why}
}

// maxWhy bounds the users that whyFull names.
const maxWhy = 3

// whyFull says why there is no room, and which users have it.
func whyFull(err error) string {
	why, _, _ := strings.Cut(err.Error(), " (try again later")
	why, _, _ = strings.Cut(why, " before you")
	var full *noRoom
	if !errors.As(err, &full) || len(full.holders) == 0 {
		return why
	}
	var holders []string
	for i, h := range full.holders {
		if i == maxWhy {
			holders = append(holders, fmt.Sprintf("and %d more", len(full.holders)-i))
			break
		}
		holders = append(holders, h.User+" "+humanfmt.Bytes(h.Held))
	}
	return why + " (" + strings.Join(holders, ", ") + ")"
}

// ensureNow is ensureAt for a client that does not wait.
func (r *rations) ensureNow(uid int, at region.Place) error {
	if err := r.checkTurn(uid, false); err != nil {
		return err
	}
	err := r.ensureAt(uid, at)
	if errors.Is(err, ErrOverbooked) && r.mustLook() { // the refusal says how much is left beside programs in no ration
		return errUnread
	}
	return err
}

// checkTurn returns an error if a user asks for room without waiting, and others wait for it: a user who asks often enough,
// or many who ask for little, would always come before them. A user with a job has the room already, unless the ration is
// to grow, or is lent; the rule says whether a user waits until a ration that was lent is there again.
func (r *rations) checkTurn(uid int, grows bool) error {
	rule, err := r.ruleOf(uid)
	if err != nil || rule.Exempt || usable(uid) && !grows && (!lent(uid) || !rule.Waits) {
		return nil // without a rule the caller gets the error where it asks for the ration
	}
	others, err := usersBefore(uid)
	if err != nil || others == 0 || lent(uid) && !grows && r.firstIsStuck() {
		return err
	}
	return fmt.Errorf("%w: %s before you (try again later)", ErrOverbooked, humanfmt.Plural(others, "other waits", "others wait"))
}

// usersBefore returns how many other users wait before a user. A command of root's that waits for room waits for no ration.
func usersBefore(uid int) (int, error) {
	all, err := job.Queue(job.Folder())
	users := slices.DeleteFunc(all, func(w job.Waiting) bool { return w.UID == 0 })
	return placeOf(users, uid) - 1, err
}

// grows reports whether a ration has more memory than that which a user has lent.
func (r *rations) grows(uid int, asked limit.Limits) bool {
	ration, _, err := r.rationOf(uid)
	was, err2 := r.limitsOf(ration)
	will, err3 := r.limitsOf(asked)
	if errors.Join(err, err2, err3) != nil {
		return true
	}
	for d := range abi.Devices {
		if !will.Memory[d].Limited() && was.Memory[d].Limited() || will.Memory[d].Limited() && will.Memory[d].Bytes() > was.Memory[d].Bytes() {
			return true
		}
	}
	return false
}

// ensureIfRoom is ensureAt for m's user, and returns a mustWait if there is no room.
func (r *rations) ensureIfRoom(m *mustWait) error {
	err := r.ensureAt(m.uid, m.at)
	if errors.Is(err, ErrOverbooked) && (r.waits(m.uid) || m.asked) {
		return r.mustWait(m, whyFull(err))
	}
	return err
}

// notNow is an error that a run does not get only because of what runs now. It begins the answer to a request of
// ration run --wait, which then tries again.
type notNow struct{ err error }

func (e *notNow) Error() string { return launch.BusyAnswer + " " + e.err.Error() }

// unlessLater returns the error of a run as a notNow if the run may be given later. If the client does not try again, the
// error says how it would.
func unlessLater(err error, tries bool) error {
	var held heldError
	switch {
	case !errors.Is(err, ErrOverbooked) && !errors.As(err, &held):
		return err
	case tries:
		return &notNow{err}
	}
	return laterError{err}
}

// laterError is an error of a run that may be given later, to a client that does not try again. What it says about that is
// in the parentheses at its end, as is all that a user can do: root reads the text without them.
type laterError struct{ error }

func (e laterError) Unwrap() error { return e.error }

func (e laterError) Error() string {
	const later = "with --wait the command waits for it)"
	if text, advises := strings.CutSuffix(e.error.Error(), ")"); advises {
		return text + "; " + later
	}
	return e.error.Error() + " (" + later
}

// heldError is an error because other programs or runs of the user hold what a run asks for.
type heldError struct{ error }

func (e heldError) Unwrap() error { return e.error }

// wants returns the memory of a user's ration, as in job.Waiting: on the devices of at, or on those of the user's job, or
// else on any.
func (r *rations) wants(uid int, at region.Place) map[int]uint64 {
	out := map[int]uint64{}
	limits, want, err := r.wholeRation(uid)
	if err != nil {
		return out
	}
	if at != 0 {
		limits, want = limits.Restrict(at), 0
	}
	for d := range min(len(r.totals()), abi.Devices) {
		if bytes := limits.Memory[d].Bytes(); bytes > 0 && want > 0 {
			out[-want] = max(out[-want], bytes)
		} else if bytes > 0 {
			out[d] = bytes
		}
	}
	return out
}

// wait waits until the user has a job, and then calls answer, which gives the client its own promise. Until that returns the
// promise of the queue keeps the job: another user would get it in between. The error says that the user is refused the job,
// or that the client has gone.
func (k *keeper) wait(c *connlimit.Conn, m *mustWait, answer func() error) error {
	client := job.ClientOf(c.PID)
	w := k.enter(m, client, c.User)
	defer k.leave(m.uid, w, client, c.User)
	_ = c.SetDeadline(time.Now().Add(requestTimeout))
	if _, err := fmt.Fprintf(c, "%s %s\n", waitWord, m.why); err != nil {
		return errGone
	}
	_ = c.SetDeadline(time.Time{})
	gone := make(chan struct{})
	go func() {
		_, _ = c.Read(make([]byte, 1)) // a client that waits sends nothing, so this returns when it has gone
		close(gone)
	}()
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for told := m.place; ; {
		select {
		case <-w.ended:
			if w.err != nil {
				return w.err
			}
			return answer()
		case <-gone:
			return errGone
		case <-tick.C:
			// A user who lets others pass gets a worse place again and again, and is not told of that.
			now := w.now.Load()
			if now == nil || now.place >= told {
				continue
			}
			told = now.place
			_ = c.SetWriteDeadline(time.Now().Add(requestTimeout))
			if _, err := fmt.Fprintf(c, "%s %s\n", waitWord, now.why); err != nil {
				return errGone
			}
		}
	}
}

// awaitRoom makes the job of a user that waits when it is the user's turn and there is room. It keeps the job until
// the clients have their promises. To enter and to leave the queue counts as the user's time: a user can do so without end.
func (k *keeper) awaitRoom(w *waitingUser, m *mustWait, pid int, user *connlimit.User) {
	of := job.Waiting{Job: job.OfUser(m.uid), UID: m.uid, PID: pid, Wants: m.wants, Wakes: m.wakes, Since: time.Now().UnixNano()}
	var ticket *job.Ticket
	var err error
	user.Do(func() { ticket, err = job.Enqueue(of) })
	k.awaitTurn(w, m, of, ticket, err, user)
}

// awaitTurn is awaitRoom with a ticket, or the error because of which there is none.
func (k *keeper) awaitTurn(w *waitingUser, m *mustWait, of job.Waiting, ticket *job.Ticket, err error, user *connlimit.User) {
	var held *os.File
	for err == nil {
		k.setTicket(w, ticket)
		if held, err = k.grantInTurn(w, m, ticket); !errors.Is(err, errPass) {
			break
		}
		k.setTicket(w, nil)
		ticket.Leave()
		ticket, err = job.Enqueue(of)
	}
	w.err = err
	k.noteWaited(m, of.Since, err)
	k.setTicket(w, nil)
	close(w.ended)
	if ticket != nil {
		ticket.Leave() // after the job is made, which then holds its room
	}
	user.Do(k.publishQueue)
	<-w.left
	if held != nil {
		_ = held.Close()
	}
}

// errPass is returned if a user waits for devices of its own choice, and others that wait may have room elsewhere.
var errPass = errors.New("others come first")

// grantInTurn makes the user's job when the ticket is the first and there is room, and returns a promise. It looks
// again and again: a thread that is blocked for each user could become too many.
func (k *keeper) grantInTurn(w *waitingUser, m *mustWait, ticket *job.Ticket) (held *os.File, err error) {
	for shown := -1; ; {
		ahead := ticket.Ahead()
		moved := ahead != shown
		if moved {
			k.publishQueue()
			shown = ahead
		}
		why := placeText(ahead + 1)
		if ahead == 0 || m.wakes {
			var again *mustWait
			if held, err = k.grant(m, ahead == 0); !errors.As(err, &again) {
				return held, err
			}
			if ahead == 0 {
				why += "; " + again.why
			}
			if all, err := job.Queue(job.Folder()); ahead == 0 && m.at != 0 && err == nil && len(all) > 1 {
				return nil, errPass
			}
		}
		if moved {
			w.now.Store(&position{ahead + 1, why})
		}
		select {
		case <-time.After(tryAgain):
		case <-w.left:
			return nil, errGone
		}
	}
}

// grant makes the user's job now, or gives it its ration back. The error is a mustWait if there is no room, or if it is
// not the user's turn.
func (k *keeper) grant(m *mustWait, first bool) (held *os.File, err error) {
	err = k.withRations(nil, func(r *rations) error {
		held, err = k.grantNow(r, m, first)
		return err
	})
	return held, err
}

func (k *keeper) grantNow(r *rations, m *mustWait, first bool) (held *os.File, err error) {
	if !first && !r.firstIsStuck() {
		return nil, m
	}
	if !usable(m.uid) || lent(m.uid) {
		if err := r.ensureIfRoom(m); err != nil {
			if first && !r.unread {
				k.makeRoom(r, m.uid)
			}
			return nil, err
		}
	}
	passed("admitted")
	return promise(m.uid)
}
