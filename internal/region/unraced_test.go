//go:build !race

package region

const raced = false
