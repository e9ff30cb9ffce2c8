package agent

import (
	"net"
	"os"
)

// Notify tells systemd the state of this service, if systemd started it and asked for that
// (sd_notify(3)).
func Notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	// systemd and Go both take a name that begins with @ as one in the abstract namespace.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.Write([]byte(state))
}
