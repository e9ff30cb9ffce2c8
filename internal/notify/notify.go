// Package notify tells people and programs what happens on a machine: by a command, by a POST to a URL,
// or by e-mail, as the [[notify]] sections of the operator's file say.
//
//	Watcher      turns snapshots and events of an agent into notifications, each problem once
//	Dispatcher   gives each section a bounded queue, a rate limit and, for URLs, retries
//	send         delivers one notification by a process without rights
//
// It is no part of the agent. It reads the agent's stream as any client does, so a slow receiver delays
// neither the agent nor a job.
//
// Names and texts in a notification come from tenants. They are escaped for the format that is sent.
package notify

import (
	"os"
	"slices"
	"strings"
	"time"

	"ration/internal/termtext"
	"ration/machine"
)

// Kinds of notifications. Those of events and findings have the same names there.
const (
	Refusal       = machine.RequestRefused   // a request of a job was refused
	Death         = machine.ProcessDied      // a process died
	Stop          = machine.ProcessesStopped // the agent has ended processes of a job over its limit
	PolicyRefused = machine.PolicyRefused    // the policy refused a user a ration
	OverLimit     = machine.OverLimit        // the driver counts more for a job than its limit
	NearLimit     = "near-limit"             // a job holds almost all of its limit
	Idle          = machine.JobIdle          // a job holds memory and has done nothing for a while
	GPUFailed     = machine.DeviceFailed     // the driver reports an error of a GPU, or does not report the GPU any more
	Test          = "test"                   // ration notify --test
)

// Kinds lists the kinds that a section can name.
var Kinds = []string{Refusal, Death, Stop, PolicyRefused, OverLimit, NearLimit, Idle, GPUFailed}

// Formats of the text that is sent.
const (
	JSON  = "json"
	Slack = "slack"
	Email = "email"
)

// Rule is a [[notify]] section: what to send, and where to. It has a command, a URL, a file with a URL, or
// addresses.
type Rule struct {
	Events   []string // kinds; empty for all
	Format   string
	Command  []string // absolute path of a program, and its arguments
	URL      string
	URLFile  string   // file whose first line is the URL
	To       []string // addresses of an e-mail
	From     string   // empty for what sendmail sets
	Sendmail string   // path of the program
}

// Title returns a short name of the rule for messages. It has no URL, which may be a secret.
func (r *Rule) Title() string {
	switch {
	case len(r.Command) > 0:
		return r.Command[0]
	case r.Format == Email:
		return "e-mail to " + strings.Join(r.To, ", ")
	case r.URLFile != "":
		return r.Format + " to the URL in " + r.URLFile
	}
	return r.Format + " to " + host(r.URL)
}

func (r *Rule) wants(kind string) bool {
	return kind == Test || len(r.Events) == 0 || slices.Contains(r.Events, kind)
}

// Notification is what a command reads on its standard input, and a URL gets as its body.
type Notification struct {
	Kind     string    `json:"kind"`
	Time     time.Time `json:"at"`
	Host     string    `json:"host"`
	User     string    `json:"user,omitempty"` // owner of the job
	UID      int       `json:"uid"`            // -1 if it is about no user
	Job      string    `json:"job,omitempty"`
	Path     string    `json:"path,omitempty"` // path of the job's region
	Device   int       `json:"device"`         // -1 if it is about no particular device
	Text     string    `json:"text"`           // a sentence without a period
	Remedy   string    `json:"remedy,omitempty"`
	Repeated int       `json:"repeated,omitempty"` // how often the same has happened since the last notification of it
}

// NewTest returns a notification that tries whether a rule works.
func NewTest(now time.Time) Notification {
	return Notification{Kind: Test, Time: now.UTC(), Host: hostname(), UID: -1, Device: -1, Text: "this is a test of ration notify"}.printable()
}

// printable returns the notification without characters that a terminal obeys or that end a line.
func (n Notification) printable() Notification {
	for _, text := range []*string{&n.Host, &n.User, &n.Job, &n.Path, &n.Text, &n.Remedy} {
		*text = termtext.Printable(*text)
	}
	return n
}

// sentence returns the notification in one line.
func (n *Notification) sentence() string {
	text := n.Text + "."
	if n.Job != "" && !strings.Contains(n.Text, n.Job) {
		text = n.Job + ": " + text
	}
	if n.Repeated > 0 {
		text += " It has happened " + times(n.Repeated) + " since the last message about it."
	}
	return text
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "this machine"
	}
	return name
}
