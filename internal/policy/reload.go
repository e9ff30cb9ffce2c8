package policy

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/launch"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
)

// mayChangeConfig reports whether an event may mean that the operator's file has changed.
func mayChangeConfig(e safepath.WatchEvent) bool {
	return e.Name == filepath.Base(ConfigFile) || e.Mask&unix.IN_Q_OVERFLOW != 0
}

// mayBeApplied reports whether an event may mean that a policy was put in force, by this process or by ration policy apply.
func mayBeApplied(e safepath.WatchEvent) bool {
	return e.Name == filepath.Base(InForceFile) || e.Mask&unix.IN_Q_OVERFLOW != 0
}

// watchFolder watches the folder of the operator's file, and sends its events. stop closes the
// channel.
func watchFolder(path string) (changes <-chan []safepath.WatchEvent, stop func(), err error) {
	dir, err := safepath.OpenFolder(path)
	if err != nil {
		return nil, nil, fmt.Errorf("watching %s: %w", path, err)
	}
	defer unix.Close(dir)
	w, err := safepath.NewWatcher()
	if err != nil {
		return nil, nil, err
	}
	if _, err := w.Add(dir, unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO|unix.IN_DELETE|unix.IN_MOVED_FROM); err != nil {
		w.Close()
		return nil, nil, fmt.Errorf("watching %s: %w", path, err)
	}
	out := make(chan []safepath.WatchEvent)
	go func() {
		defer close(out)
		for {
			events, err := w.Read()
			if err != nil {
				return
			}
			out <- events
		}
	}()
	return out, w.Close, nil
}

// reload puts the operator's file in force. If the file is not valid, the current policy stays.
func (k *keeper) reload() {
	lookAround()
	k.turn.lock()
	defer k.turn.unlock()
	warn := func(text string) { k.log.Warn(text) }
	p, file := k.policy, InForceFile
	now, err := Check(ConfigFile)
	if err == nil {
		err = Trusted(ConfigFile)
	}
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			k.log.Error("the policy that is in force stays: " + line)
		}
	} else {
		p, file = now, ConfigFile
	}
	lock, err := lockJobs()
	if err != nil {
		k.log.Error("the policy could not be applied", "error", err)
		return
	}
	defer lock.Close()
	if err := checkInForce(); err != nil { // it has been disabled since
		k.log.Info("nothing was applied", "error", err)
		return
	}
	out, err := p.apply(nil, warn)
	if err == nil {
		err = p.putInForce()
	}
	for _, f := range out.Failed {
		k.log.Error("a user's job could not be made or changed", "user", proc.UserName(f.UID), "uid", f.UID, "error", f.Text())
	}
	for _, later := range out.Later {
		k.log.Info("a user's job "+later.Text, "user", proc.UserName(later.UID), "uid", later.UID)
	}
	if err != nil {
		k.log.Error("the policy could not be applied", "error", err)
		return
	}
	k.policy = p
	if file == ConfigFile {
		k.log.Info("the policy is in force", "file", file, "users", len(out.Users))
	} else {
		k.log.Info("the policy of before is in force", "file", file, "users", len(out.Users))
	}
	if p.sleepsUnmeasured() && !region.OnHost() {
		k.log.Warn("in a PID namespace sleep_after counts only for rules with compute_max: it is not known whether other jobs work")
	}
}

// behindEvery is how often the service tries to give users the ration of their rule for which there was no room, or whose
// programs kept it from moving.
const behindEvery = 5 * time.Second

// behind has what users have while they may be behind, in their jobs and runs.
type behind map[int]launch.Booking

// noteBehind notes all users.
func (k *keeper) noteBehind() {
	k.behind = behind{}
	r, done, err := k.open()
	if err == nil {
		defer done()
	}
	for _, uid := range Users() {
		k.behind[uid] = launch.Booking{}
		if err == nil {
			k.behind[uid] = r.beside(uid).has
		}
	}
}

// catchUp gives them their rations, if there is room now and no other user waits for it.
func (k *keeper) catchUp() {
	if len(k.behind) == 0 {
		return
	}
	lookAround()
	r, done, err := k.open()
	if err != nil {
		return // the next tick tries again
	}
	defer done()
	if checkInForce() != nil {
		return
	}
	maps.DeleteFunc(k.behind, func(uid int, had launch.Booking) bool {
		if !usable(uid) || lent(uid) && !r.misplaced(uid) {
			return true // the next program of the user, or the wake, gets it
		}
		if lent(uid) {
			return false
		}
		if whole, _, err := r.wholeRation(uid); err == nil && r.mayLend(uid) && saysAsleep(uid) {
			if b := r.beside(uid); b.grows(whole) {
				return false // a larger ration would be lent sooner, and it could wake later
			}
		}
		err := r.ensure(uid)
		if now, is := placed(uid); err == nil && (r.misplaced(uid) || is && r.failed(now)) {
			return false // until its programs have ended, or the GPU answers
		}
		if has := r.beside(uid).has; err == nil && has != had { // it may have got it when a run ended
			whole, _, _ := r.wholeRation(uid) // the user's job has it less that of the runs
			r.say(uid, "%s has the whole ration now%s", proc.UserName(uid), r.rationText(": ", whole))
		}
		return err == nil
	})
}

// leaveFailed takes back the rations of idle users on devices that do not answer: their next program would join the job
// there. Users that the file names get another one at once.
func (k *keeper) leaveFailed() {
	if known := silent.Load(); known == nil || len(*known) == 0 {
		return
	}
	lookAround()
	r, done, err := k.open()
	if err != nil {
		return // the next tick tries again
	}
	defer done()
	for _, uid := range Users() {
		now, is := placed(uid)
		ration, rule, err := r.rationOf(uid)
		if err != nil || !is || !r.failed(now) || r.wanted(ration) == 0 || checkInForce() != nil || evict(uid) != nil {
			continue
		}
		r.say(uid, "the ration of %s is taken back: %v does not answer", proc.UserName(uid), now)
		if strings.HasPrefix(rule.Source, "users.") {
			_ = r.ensure(uid) // with no room elsewhere, the next program asks for it
		}
	}
}
