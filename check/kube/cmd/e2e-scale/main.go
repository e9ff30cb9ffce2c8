// Command e2e-scale measures how the stock scheduler places claims for parts of GPUs on many simulated nodes,
// and checks that it did so exactly.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"time"

	"ration/check/harness"
	"ration/check/kube/cluster"
	"ration/check/kube/simnode"
)

// size is how large the cluster is, and how much is asked of it.
type size struct {
	nodes, gpus, claims, clients, score int
	template                            bool
}

func main() {
	var s size
	flag.IntVar(&s.nodes, "nodes", 100, "nodes")
	flag.IntVar(&s.gpus, "gpus", 8, "GPUs of 80 GiB of each node")
	flag.IntVar(&s.claims, "claims", 2000, "pods, each with a claim")
	flag.IntVar(&s.clients, "clients", 20, "clients that make them at once")
	flag.IntVar(&s.score, "score", 0, "the scheduler's percentageOfNodesToScore; 0 is its default")
	flag.BoolVar(&s.template, "template", false, "claims are made by a controller, from templates")
	within := flag.Duration("within", time.Hour, "place pods for no longer than this, and report how many there are")
	flag.Parse()
	err := run(s, *within)
	harness.KillAll()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e-scale:", err)
		os.Exit(1)
	}
}

func run(s size, within time.Duration) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	folder, err := os.MkdirTemp("", "ration-e2e-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	c, err := cluster.Start(ctx, folder, cluster.Options{RequestsPerSecond: 5000, ScorePercent: s.score})
	if err != nil {
		return err
	}
	defer c.Stop()
	watching, end := context.WithCancel(context.Background()) // beyond the time that is given
	defer end()
	kubelets, err := simnode.Start(watching, c.Client, 20)
	if err != nil {
		return err
	}
	t := &trial{size: s, c: c, kubelets: kubelets, placed: make(chan struct{})}
	fmt.Printf("%d nodes × %d GPUs × 80 GiB, %d pods with a claim each, from %d clients; %d processors\n", s.nodes, s.gpus, s.claims, s.clients, runtime.NumCPU())
	if err := t.furnish(ctx, watching); err != nil {
		return err
	}
	if err := t.place(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if err := t.measure(); err != nil {
		return err
	}
	if err := t.check(watching); err != nil {
		return err
	}
	t.report()
	return nil
}
