// Command ration-man writes the man pages of ration, for its packages. It is a program of its own so that what
// renders them, which takes 0.4 ms to be set up, is no part of each start of ration.
package main

import (
	"fmt"
	"io"
	"os"

	"ration/internal/cli"
)

const usage = "usage: ration-man FOLDER (writes a page for each command, and ration(7); SOURCE_DATE_EPOCH sets their date)"

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	if len(args) != 1 {
		fmt.Fprintln(stderr, usage)
		return cli.ExitUsage
	}
	if err := writePages(cli.ReferenceOf(), args[0]); err != nil {
		fmt.Fprintln(stderr, "ration-man:", err)
		return cli.ExitFailed
	}
	return cli.ExitOK
}
