package notify

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/agent/privsep"
)

// DeliverCommand is the hidden command of ration that runs Deliver.
const DeliverCommand = "notify-deliver"

// First arguments of DeliverCommand.
const (
	execCommand = "exec" // gives up rights, and runs the program after --
	postCommand = "post" // sends a request from its standard input
)

// exitPasses is the exit status of a process that may succeed later (EX_TEMPFAIL of sysexits.h).
const exitPasses = 75

// postTimeout bounds one request. It is less than sendTimeout, so that its error is heard of.
const postTimeout = 20 * time.Second

// post is a request to send.
type post struct {
	URL  string `json:"url"`
	Body []byte `json:"body"`
}

// ErrUsage is returned for arguments that no parent passes.
var ErrUsage = errors.New("this command is for ration itself, not for people")

// Deliver is the main function of a process that delivers one notification. The process runs as nobody. It can
// get no further rights, and no other process of nobody can read its memory.
func Deliver(args []string, stdin io.Reader) (status int, err error) {
	if err := errors.Join(privsep.Isolate(), unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); err != nil {
		return 1, err
	}
	switch {
	case slices.Equal(args, []string{postCommand}):
		return deliverPost(stdin)
	case len(args) > 2 && args[0] == execCommand && args[1] == "--":
		err := unix.Exec(args[2], args[2:], nil)
		return 1, fmt.Errorf("starting %s as nobody: %w", args[2], err)
	}
	return 1, ErrUsage
}

func deliverPost(stdin io.Reader) (status int, err error) {
	var p post
	if err := json.NewDecoder(stdin).Decode(&p); err != nil {
		return 1, err
	}
	// A redirection is an error: the URL may be a secret that is for one host only.
	client := http.Client{Timeout: postTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Post(p.URL, "application/json", bytes.NewReader(p.Body))
	if err != nil {
		var with *url.Error
		if errors.As(err, &with) {
			err = with.Err // without the URL
		}
		var dial *net.OpError
		if errors.As(err, &dial) && dial.Op == "dial" {
			err = fmt.Errorf("connecting to %s: %w", host(p.URL), cmp.Or(errors.Unwrap(dial.Err), dial.Err))
		}
		return exitPasses, err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // only for the message
	switch code := resp.StatusCode; {
	case code < 300:
		return 0, nil
	case code == http.StatusTooManyRequests || code >= 500:
		return exitPasses, fmt.Errorf("the server answers %s: %s", resp.Status, text)
	default:
		return 1, fmt.Errorf("the server answers %s: %s", resp.Status, text)
	}
}

// CheckURL checks the form of a URL.
func CheckURL(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("not a URL (as https://example.com/hook)") // without the text, which may be a secret
	}
	return nil
}
