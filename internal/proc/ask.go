package proc

import (
	"strconv"
	"sync"
	"time"
)

// To answer from a process's memory, or from the list of its mappings, the kernel takes a lock of that process. A
// tenant can keep this lock: a thread that needs a page of a file system of the tenant's own (FUSE) waits with the
// lock for as long as that file system does not answer. So such a question has a deadline, and those that wait are
// bounded by user: each costs a thread of this process, until the tenant's process ends.

const (
	askTimeout     = 250 * time.Millisecond
	maxAskedOfUser = 4
	maxAskedOfAll  = 64
)

// The runtime opens a descriptor for its first timer, and ends the process if it cannot. So it does that now, and
// not when descriptors have run out.
func init() { time.AfterFunc(time.Hour, func() {}).Stop() }

// asked counts the questions that wait, by user.
var asked = struct {
	sync.Mutex
	by  map[int]int
	all int
}{by: map[int]int{}}

// Ask calls ask, which asks the kernel about the memory of a process. answered is false if there is no answer in
// time, or if too many questions about this user's processes wait already. An answer that comes too late is passed
// to late, if it is not nil.
func Ask[T any](pid int, ask func() T, late func(T)) (answer T, answered bool) {
	status, err := readStart("/proc/"+strconv.Itoa(pid)+"/status", 4096) // the users are in the first lines
	uid, _, err2 := parseStatus(status)
	if err != nil || err2 != nil {
		uid = -1 // the process has ended, or cannot be seen: these questions count together
	}
	return askOf(Account(uid), ask, late)
}

func askOf[T any](user int, ask func() T, late func(T)) (answer T, answered bool) {
	if !begin(user) {
		return answer, false
	}
	answers, timeout := make(chan T), make(chan struct{})
	go func() {
		got := ask()
		end(user)
		select {
		case answers <- got:
		case <-timeout:
			if late != nil {
				late(got)
			}
		}
	}()
	timer := time.NewTimer(askTimeout)
	defer timer.Stop()
	select {
	case answer = <-answers:
		return answer, true
	case <-timer.C:
		close(timeout)
		return answer, false
	}
}

func begin(user int) bool {
	asked.Lock()
	defer asked.Unlock()
	if asked.by[user] >= maxAskedOfUser || asked.all >= maxAskedOfAll {
		return false
	}
	asked.by[user]++
	asked.all++
	return true
}

func end(user int) {
	asked.Lock()
	defer asked.Unlock()
	asked.all--
	if asked.by[user]--; asked.by[user] == 0 {
		delete(asked.by, user)
	}
}
