//go:build race

package cli

func init() { underRace = true }
