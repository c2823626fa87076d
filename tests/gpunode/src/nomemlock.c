/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded where root lacks CAP_SYS_RESOURCE: lets setrlimit(RLIMIT_MEMLOCK) that failed with
 * EPERM count as done. crun raises that limit before it loads its device program; since kernel 5.11
 * BPF memory is no longer counted against it, so nothing is lost.
 * Must not: hide any other limit or any other error.
 */
#include "sys.h"

enum { RLIMIT_MEMLOCK = 8 };

extern int *__errno_location(void);

EXPORT int prlimit64(int pid, unsigned resource, const void *wanted, void *old)
{
	long result = sys6(NR_prlimit64, pid, (long)resource, (long)wanted, (long)old, 0, 0);
	if (result == -EPERM && resource == RLIMIT_MEMLOCK && wanted && !old)
		result = 0;
	if (result < 0) {
		*__errno_location() = (int)-result;
		return -1;
	}
	return 0;
}
ALIAS(prlimit, prlimit64);
EXPORT int setrlimit64(unsigned resource, const void *wanted)
{
	return prlimit64(0, resource, wanted, NULL);
}
ALIAS(setrlimit, setrlimit64);
