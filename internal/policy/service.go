package policy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"ration/internal/connlimit"
)

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
