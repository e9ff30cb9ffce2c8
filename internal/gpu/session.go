package gpu

import "time"

// maxSession is how long a session keeps one and the same driver open: the list of devices is as
// it was when the driver was opened, and one may be added, or divided, meanwhile.
const maxSession = time.Minute

// Session keeps the driver open for a program that asks it again and again: to start NVML for each
// question costs more than the question. It is not for use by several goroutines at once. Its zero
// value is ready.
type Session struct {
	driver *Driver
	opened time.Time
	open   func() (*Driver, error) // Open, but for tests
	now    func() time.Time        // time.Now, but for tests
}

// Driver returns the driver. It is open until the next call, Failed or Close.
func (s *Session) Driver() (*Driver, error) {
	if s.open == nil {
		s.open = func() (*Driver, error) { return Open("") }
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.driver != nil && s.now().Sub(s.opened) < maxSession {
		return s.driver, nil
	}
	// The new one is opened first: the last to leave NVML shuts it down.
	driver, err := s.open()
	s.Close()
	if err != nil {
		return nil, err
	}
	s.driver, s.opened = driver, s.now()
	return driver, nil
}

// Failed makes the next call of Driver open it anew: it has not answered, as after it was loaded
// again.
func (s *Session) Failed() { s.opened = time.Time{} }

// Close ends the use of the driver.
func (s *Session) Close() {
	if s.driver != nil {
		s.driver.Close()
		s.driver = nil
	}
}
