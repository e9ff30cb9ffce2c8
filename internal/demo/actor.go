package demo

import (
	"syscall"
	"time"
)

// part is what an actor plays: it takes Low and then either keeps holding something
// between Low and High, or asks for something once.
type part struct {
	Path      string
	Name      string
	Limit     uint64
	Context   uint64 // of Low, what its context costs
	Low, High uint64
	Ask       uint64
}

// actor is a process with a part. What it is told it does at once, and what became
// of it is asked for separately, so that all can be told before one is waited for.
type actor interface {
	PID() int
	Signal(syscall.Signal) error
	Die() error

	attached() (time.Duration, error) // it is, and holds Low; how long that took
	wander() error                    // told to
	ask() (answer, error)             // once
	quiet() (worked, error)           // hold what you have, and say what you did
	leave() error                     // it has left, and has ended
	Close()
}

// worked is what an actor did.
type worked struct {
	Requests int64
	Refused  int64
	Slowest  time.Duration // answer to a request
}

// answer is what became of asking once.
type answer struct {
	Refused bool
	Took    time.Duration
}

// company is where actors come from.
type company interface {
	about() string   // one line on who they are
	refusal() string // what a refused actor was told, in its own words
	context() uint64 // what each actor holds without asking
	hire(part) (actor, error)
	attach([]actor) error     // all of them are told to, at once
	driver() (*uint64, error) // what the driver says that all hold; nil where there is none
	look() (*View, error)     // what a table of devices shows; nil where there is none
	close()
}
