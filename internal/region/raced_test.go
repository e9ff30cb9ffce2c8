//go:build race

package region

// raced: this program was built with the race detector.
const raced = true
