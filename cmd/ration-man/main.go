// Command ration-man writes the man pages of ration, for its packages, docs/commands.md, and the
// descriptions in ration schema. It is a separate program because the packages that render pages
// take 0.4 ms to initialise, which would delay each start of ration.
package main

import (
	"fmt"
	"io"
	"os"

	"ration/internal/cli"
)

//go:generate go run . --page ../../docs/commands.md
//go:generate go run . --descriptions ../../internal/cli/descriptions.json ../..

const usage = "usage: ration-man FOLDER (writes a man page for each command, and ration(7); SOURCE_DATE_EPOCH sets their date)\n" +
	"       ration-man --page FILE (writes docs/commands.md)\n" +
	"       ration-man --descriptions FILE SOURCES (writes internal/cli/descriptions.json)"

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	ref := cli.ReferenceOf()
	var err error
	switch {
	case len(args) == 1:
		err = writePages(ref, args[0])
	case len(args) == 2 && args[0] == "--page":
		err = os.WriteFile(args[1], commandsPage(ref), 0o644)
	case len(args) == 3 && args[0] == "--descriptions":
		var text []byte
		if text, err = descriptionsOf(ref, args[2]); err == nil {
			err = os.WriteFile(args[1], text, 0o644)
		}
	default:
		fmt.Fprintln(stderr, usage)
		return cli.ExitUsage
	}
	if err != nil {
		fmt.Fprintln(stderr, "ration-man:", err)
		return cli.ExitFailed
	}
	return cli.ExitOK
}
