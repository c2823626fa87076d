/* SPDX-License-Identifier: Apache-2.0 */
/* NVML's limits of memory as nvml.h has them: an int each, and these structs.  What it does wrong is defined by the test. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { const char *nameSpace; unsigned long long softLimit, hardLimit; } set_t;
typedef struct { const char *nameSpace; unsigned long long softLimit, hardLimit, currentUsed; } get_t;
static char gpu[64];
static unsigned long long hard;
static unsigned alarms;
static void forever(void) { for (;;) pause(); }
int nvmlInit_v2(void) { AT_INIT; return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **to) { strcpy(gpu, id); *to = gpu; return 0; }
#ifndef OLD
int nvmlDeviceSetMemoryLimits_v1(void *device, set_t *it)
{
	FILE *file = fopen(TOLD, "a");
	fprintf(file, "%s %s %llu %llu\n", (char *)device, it->nameSpace, it->softLimit, it->hardLimit);
	fclose(file);
	hard = it->hardLimit;
	return SET_GIVES;
}
int nvmlDeviceGetMemoryLimits_v1(void *device, get_t *it)
{
	it->softLimit = 7, it->currentUsed = 9;
	it->hardLimit = GET_HAS;
	return 0;
}
#endif
