// Package region is the shared memory in which all processes of a job keep their accounts. It opens
// and initialises the file, claims slots, charges and returns bytes exactly and without a lock,
// returns the memory of dead processes, and reads everything consistently while others write.
//
// docs/protocols.md gives the invariant of each protocol, its steps, and the state after a crash.
// The code uses the same terms. shim/region is the same in C, on the same files.
//
// Memory order. Every shared word is read and written with sync/atomic or storeRelease. The
// comments name the partner of each release: the load, here or in C, that relies on it.
package region
