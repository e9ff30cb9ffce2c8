package agent

import (
	"net"
	"os"
)

// Notify tells systemd how it is with this service, where systemd has started it and wants to
// know (sd_notify(3)).
func Notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	// A name that begins with @ is in the abstract namespace, for systemd and for Go.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.Write([]byte(state))
}
