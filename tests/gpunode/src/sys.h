/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few kernel calls and string functions that the simulated driver needs, without a C library:
 * a library built on this loads under glibc and musl of any age, and a program runs in any image.
 * Must not: allocate memory, keep state, or depend on any other header.
 * A failed call returns the negative errno, as the kernel gives it.
 */
#ifndef GPUNODE_SYS_H
#define GPUNODE_SYS_H

typedef unsigned long size_t;
typedef unsigned long long u64;

#define NULL ((void *)0)
#define EXPORT __attribute__((visibility("default")))
#define LOCAL __attribute__((visibility("hidden"), used))
#define UNUSED __attribute__((unused))
#define ALIAS(name, of) EXPORT extern __typeof__(of) name __attribute__((alias(#of)))

#if defined(__x86_64__)
enum { NR_read = 0, NR_write = 1, NR_close = 3, NR_exit = 231, NR_openat = 257, NR_getdents64 = 217, NR_prlimit64 = 302,
       NR_ppoll = 271, O_DIRECTORY = 0200000 };
static inline long sys6(long n, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long result;
	__asm__ volatile("syscall" : "=a"(result)
			 : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}
#define ENTRY(function) \
	__asm__(".globl _start\n_start:\n\txor %ebp,%ebp\n\tmov %rsp,%rdi\n\tand $-16,%rsp\n\t" \
		"call " #function "\n\thlt\n")
#elif defined(__aarch64__)
enum { NR_read = 63, NR_write = 64, NR_close = 57, NR_exit = 94, NR_openat = 56, NR_getdents64 = 61, NR_prlimit64 = 261,
       NR_ppoll = 73, O_DIRECTORY = 040000 };
static inline long sys6(long n, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;
	__asm__ volatile("svc 0" : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
#define ENTRY(function) \
	__asm__(".globl _start\n_start:\n\tmov x29,#0\n\tmov x30,#0\n\tmov x0,sp\n\tb " #function "\n")
#else
#error "only x86_64 and aarch64 have NVIDIA's data centre driver"
#endif

enum { AT_FDCWD = -100, O_RDONLY = 0, O_WRONLY = 1, O_RDWR = 2, O_APPEND = 02000, O_NONBLOCK = 04000,
       O_CLOEXEC = 02000000 };
enum { EPERM = 1, ENOENT = 2, ENXIO = 6, EACCES = 13, ENODEV = 19, ELOOP = 40 };
enum { DT_CHR = 2, DT_DIR = 4, DT_REG = 8 };

struct dirent64 {
	u64 d_ino;
	long long d_off;
	unsigned short d_reclen;
	unsigned char d_type;
	char d_name[];
};

static inline long sys_openat(int dir, const char *path, int flags, int mode)
{
	return sys6(NR_openat, dir, (long)path, flags, mode, 0, 0);
}
static inline long sys_open(const char *path, int flags)
{
	return sys_openat(AT_FDCWD, path, flags | O_CLOEXEC, 0);
}
static inline long sys_close(int fd) { return sys6(NR_close, fd, 0, 0, 0, 0, 0); }
static inline long sys_read(int fd, void *to, size_t n)
{
	return sys6(NR_read, fd, (long)to, (long)n, 0, 0, 0);
}
static inline long sys_write(int fd, const void *from, size_t n)
{
	return sys6(NR_write, fd, (long)from, (long)n, 0, 0, 0);
}
static inline long sys_getdents64(int fd, void *to, size_t n)
{
	return sys6(NR_getdents64, fd, (long)to, (long)n, 0, 0, 0);
}
/* Until a signal comes. */
static inline void sys_sleep(void) { sys6(NR_ppoll, 0, 0, 0, 0, 0, 0); }
static inline _Noreturn void sys_exit(int status)
{
	for (;;)
		sys6(NR_exit, status, 0, 0, 0, 0, 0);
}

/* gcc may call these on its own account, so they must exist even without a C library. */
LOCAL void *memset(void *to, int byte, size_t n)
{
	for (volatile char *p = to; n; n--)
		*p++ = (char)byte;
	return to;
}
LOCAL void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
	const char *source = from;
	for (volatile char *p = to; n; n--)
		*p++ = *source++;
	return to;
}

static UNUSED size_t text_length(const char *text)
{
	size_t n = 0;
	while (text[n])
		n++;
	return n;
}
static UNUSED int text_compare(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return (unsigned char)*a - (unsigned char)*b;
}
/* The rest of `text` after `prefix`, or NULL. */
static UNUSED const char *text_after(const char *text, const char *prefix)
{
	while (*prefix)
		if (*text++ != *prefix++)
			return NULL;
	return text;
}
/* Copies what fits and always ends with NUL; says whether all of it fitted. */
static UNUSED int text_copy(char *to, size_t room, const char *from)
{
	size_t n = 0;
	for (; from[n] && n + 1 < room; n++)
		to[n] = from[n];
	if (room)
		to[n] = 0;
	return !from[n];
}
static UNUSED int text_append(char *to, size_t room, const char *from)
{
	size_t used = text_length(to);
	return text_copy(to + used, room - used, from);
}
static UNUSED u64 text_number(const char *text, int base)
{
	u64 value = 0;
	for (; *text; text++) {
		int digit = *text >= '0' && *text <= '9' ? *text - '0'
			  : *text >= 'a' && *text <= 'f' ? *text - 'a' + 10
			  : *text >= 'A' && *text <= 'F' ? *text - 'A' + 10 : base;
		if (digit >= base)
			break;
		value = value * (u64)base + (u64)digit;
	}
	return value;
}
/* Until the next number. */
static UNUSED const char *number_text(u64 value)
{
	static char digits[24];
	char *p = digits + sizeof digits;
	*--p = 0;
	do
		*--p = (char)('0' + value % 10);
	while (value /= 10);
	return p;
}
static UNUSED void append_number(char *to, size_t room, u64 value)
{
	text_append(to, room, number_text(value));
}
/* Reads a small file whole; returns its length or the negative errno. Ends with NUL. */
static UNUSED long read_file(int dir, const char *path, char *to, size_t room)
{
	long fd = sys_openat(dir, path, O_RDONLY | O_CLOEXEC, 0), got = 1, total = 0;
	if (fd < 0)
		return fd;
	while (got > 0 && (size_t)total + 1 < room) {
		got = sys_read((int)fd, to + total, room - 1 - (size_t)total);
		if (got > 0)
			total += got;
	}
	sys_close((int)fd);
	to[total] = 0;
	return got < 0 ? got : total;
}
static UNUSED void print_to(int fd, const char *text)
{
	size_t left = text_length(text);
	for (long n = 1; left && n > 0; left -= (size_t)n, text += n)
		n = sys_write(fd, text, left);
}
/* Texts on stdout, one after another. */
static UNUSED void say(const char *text, ...)
{
	__builtin_va_list more;
	__builtin_va_start(more, text);
	for (; text; text = __builtin_va_arg(more, const char *))
		print_to(1, text);
	__builtin_va_end(more);
}
#define SAY(...) say(__VA_ARGS__, NULL)
#endif
