package machine

import "time"

// putOff leaves a folder for a look that is due then.
func (s *userState) putOff(folder string, due time.Time) {
	s.late[folder], s.lateDue = true, earlier(s.lateDue, due)
}

// soonGap is after how long another look is worth while, at the earliest, where something was put off.
const soonGap = 40 * time.Millisecond

// earlier returns the earlier of two times, where the zero time is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
