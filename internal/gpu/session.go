package gpu

import "time"

// maxSession is how long a session keeps the same driver open. The list of devices is read when the
// driver is opened, and a device may be added or divided later.
const maxSession = time.Minute

// Session keeps the driver open for a program that queries it repeatedly, because starting NVML
// costs more than a query. It is not safe for concurrent use. The zero value is ready.
type Session struct {
	driver *Driver
	opened time.Time
	open   func() (*Driver, error) // Open, except in tests
	now    func() time.Time        // time.Now, except in tests
}

// Driver returns the driver, which stays open until the next call of Driver, Failed or Close.
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
	// Open the new one first, because closing the last user of NVML shuts it down.
	driver, err := s.open()
	s.Close()
	if err != nil {
		return nil, err
	}
	s.driver, s.opened = driver, s.now()
	return driver, nil
}

// Failed makes the next call of Driver open the driver again. Call it when the driver does not
// respond, for example after a reload.
func (s *Session) Failed() { s.opened = time.Time{} }

// Close closes the driver.
func (s *Session) Close() {
	if s.driver != nil {
		s.driver.Close()
		s.driver = nil
	}
}
