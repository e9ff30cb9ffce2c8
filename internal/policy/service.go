package policy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"ration/internal/connlimit"
)

// serviceAge is how long an answer of ServiceUp is used again: every user can ask for the metrics that have it.
const serviceAge = 5 * time.Second

var service struct {
	sync.Mutex
	up *bool     // guarded by Mutex
	at time.Time // guarded by Mutex; zero before the first question
}

// ServiceUp returns whether the service answers that makes users' jobs (Keep), or nil if no policy is in force.
func ServiceUp() *bool {
	service.Lock()
	defer service.Unlock()
	if now := time.Now(); now.Sub(service.at) > serviceAge {
		service.up, service.at = serviceUp(InForceFile, Socket), now
	}
	return service.up
}

func serviceUp(inForce, socket string) *bool {
	if _, err := os.Lstat(inForce); err != nil {
		return nil
	}
	conn, err := connlimit.Dial(socket, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	up := err == nil || connlimit.Full(err)
	return &up
}

// listen makes the socket, which every user can connect to.
func listen() (net.Listener, error) {
	if c, err := connlimit.Dial(Socket, time.Second); err == nil || connlimit.Full(err) {
		if err == nil {
			_ = c.Close()
		}
		return nil, fmt.Errorf("%w: a process answers at %s", ErrKept, Socket)
	}
	if err := os.Remove(Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("making %s: %w", Socket, err)
	}
	l, err := net.Listen("unix", Socket)
	if err != nil {
		return nil, fmt.Errorf("making %s: %w", Socket, err)
	}
	if err := os.Chmod(Socket, 0o666); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("opening %s to all users: %w", Socket, err)
	}
	return l, nil
}
