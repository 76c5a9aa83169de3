"""Small pieces of English and JSON that data.py and conversation.py share."""
import json, re, zlib

CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"


def held_out(word):
    return zlib.crc32(word.lower().encode()) % 6 == 0


STOP = set("a an and any as at be by can fetch find for from get give how id if in into is it its lets look make many new number of on one or out over put return set show so some something somebody someone tell than that the there they this to up use used user was what when where which who whose with api tool v".split())


# Words that stand in any request, whatever it is about.
COMMON = set("are about after all also always among ask been before but call can could did does doing done down each ever every few first from give had has have having here how know last less let like long made many may me mine more most much must need never next not now off often old only open our own please same say see should since something soon still take them then these they thing things think this those time till too under until very want was were will without would yes yet you your".split())


def stem(word):
    """What forms of a word share, roughly."""
    for end in ("ings", "ing", "ies", "es", "ed", "s", "e", "y"):
        if word.endswith(end) and len(word) - len(end) >= 3: return word[: -len(end)]
    return word


def inflect(word, like):
    """The word in the form of another one."""
    end = next((end for end in ("ing", "ed") if like.endswith(end) and len(like) > len(end) + 2), "")
    text = word.removesuffix("e") + end if end else plural(word) if like.endswith("s") and not like.endswith("ss") else word
    return text.capitalize() if like[0].isupper() else text


def content(text):
    """The words of a name or a sentence that say what it is about, in lower case and without a plural s."""
    found = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)
    return {w.lower().removesuffix("s") for w in found} - STOP


def words(name):
    return name.replace("_", " ")


def plural(noun):
    return words(noun) + ("es" if noun.endswith(("s", "x", "h")) else "s") if not noun.endswith(("y",)) or noun[-2] in VOWELS else words(noun)[:-1] + "ies"


def article(noun, adjective=""):
    text = (adjective + " " if adjective else "") + words(noun)
    return ("an " if text[0] in VOWELS else "a ") + text


def join(parts, last="and"):
    parts = [str(p) for p in parts]
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + f" {last} " + parts[-1]


def dumps(x):
    return json.dumps(x, separators=(",", ":"), ensure_ascii=False)
