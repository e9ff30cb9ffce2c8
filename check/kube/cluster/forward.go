package cluster

import (
	"fmt"
	"io"
	"net"
)

// Forward passes connections to ServiceAddress on to the API server, as kube-proxy does on a node, until the returned
// listener is closed. This machine has to have that address.
func (c *Cluster) Forward() (net.Listener, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(ServiceAddress, "443"))
	if err != nil {
		return nil, fmt.Errorf("listening for pods: %w", err)
	}
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return // it was closed
			}
			go forward(from, address(c.port))
		}
	}()
	return listener, nil
}

// forward copies in both directions until one of them ends.
func forward(from net.Conn, address string) {
	defer from.Close()
	to, err := net.Dial("tcp", address)
	if err != nil {
		return // the client sees that the connection ends, and tries again
	}
	defer to.Close()
	ended := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			ended <- struct{}{}
		}()
	}
	<-ended
}
