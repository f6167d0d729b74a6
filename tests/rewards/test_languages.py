# ruff: noqa: RUF001
"""Answers in many scripts: unknown words change nothing, and what takes an answer back is known in eleven languages."""

import pytest

from bandpo.rewards import grade
from bandpo.rewards.lexicon import WORDS, P, in_english

STATED = """
따라서 답은 \\boxed{12}입니다.
정답은 12입니다.
답: **12**
Итак, в корзине осталось \\boxed{12} яблок.
**Ответ:** 12 яблок
Ответ — 12.
Разом $\\boxed{12}$ гривень.
Відповідь: 12
Άρα έμειναν \\boxed{12} μήλα.
Απάντηση: 12
לכן נשארו \\boxed{12} תפוחים.
תשובה: 12
إذن عدد التفاحات هو \\boxed{12}.
الجواب: ١٢
الإجابة هي \\boxed{12} كتابًا.
بنابراین \\boxed{12} سیب باقی می‌ماند.
इसलिए उत्तर \\boxed{12} है।
उत्तर: 12
তাই উত্তর \\boxed{12} টি।
எனவே \\boxed{12} ஆப்பிள்கள் உள்ளன.
కాబట్టి సమాధానం \\boxed{12}.
ดังนั้นคำตอบคือ \\boxed{12} ผล
คำตอบ: 12
答えは12です。
したがって、\\boxed{12}個です。
答案：12
所以一共有 $\\boxed{12}$ 个苹果。
Le total est égal à \\boxed{12}.
**Réponse finale :** 12 pommes
La réponse est donc 12.
La respuesta será \\boxed{12} años.
La respuesta correcta es 12.
A resposta é $12$.
O resultado é \\boxed{12}, à noite.
La risposta è \\boxed{12}.
Also bleiben \\boxed{12} Äpfel übrig.
Die Antwort ist 12 Äpfel.
Het antwoord is \\boxed{12} kilometer.
Svaret är \\boxed{12} år.
Zatem zostało \\boxed{12} jabłek.
Odpowiedź: 12
Takže odpověď je 12.
Tehát a válasz: 12
Cevap: 12 öğrenci
Vậy tổng số là \\boxed{12} học sinh.
Đáp án: 12
Jadi jawabannya adalah 12.
Răspunsul este \\boxed{12}.
Vastaus on 12.
""".strip().splitlines()
TAKEN_BACK = """
Это не \\boxed{12}.
Ответ не равен \\boxed{12}, а 13.
\\boxed{12} — неверный ответ.
Возможно, \\boxed{12}.
La mitad de \\boxed{12}.
No es \\boxed{12}, sino 13.
\\boxed{12} es incorrecto.
Quizás \\boxed{12}.
Ce n'est pas \\boxed{12}.
La moitié de \\boxed{12}.
Das ist nicht \\boxed{12}.
Die Hälfte von \\boxed{12}.
\\boxed{12} ist falsch.
Não é \\boxed{12}.
Metade de \\boxed{12}.
答案不是 \\boxed{12}。
\\boxed{12} 是错误的。
答案可能是 12
答えは\\boxed{12}ではありません。
\\boxed{12}は間違いです。
답은 \\boxed{12}이 아닙니다.
아마 \\boxed{12}
الجواب ليس \\boxed{12}.
ربما \\boxed{12}
उत्तर \\boxed{12} नहीं है।
शायद \\boxed{12}
The hint says \\boxed{12}. But I give up.
Suppose the answer is 12. Then 1 = 2, a contradiction.
12 has been ruled out.
The answer is greater than 12.
Answer: we can exclude 12
If there were no leap years, the answer would be 12. But there are.
Предположим, что $n=\\boxed{12}$. Тогда сумма цифр была бы чётной.
Angenommen, $x=\\boxed{12}$. Dann stünde links 5 und rechts 8.
A common mistake is to conclude that the answer is $\\boxed{12}$; the draws are not independent.
It would be tempting to write \\boxed{12}, but the triangle is not equilateral.
Many students think the total is \\boxed{12}.
Une erreur fréquente est de répondre \\boxed{12}.
很多人误以为答案是$\\boxed{12}$，其实不是独立的。
Частая ошибка — считать, что ответ равен $\\boxed{12}$.
Zu den \\boxed{12} kommen noch die Versandkosten hinzu, die in der Aufgabe fehlen.
Il faut encore ajouter les frais de port à \\boxed{12}.
把\\boxed{12}再加上运费，才是最后要付的钱。
We still have to add the postage to \\boxed{12}.
Wäre $n = \\boxed{12}$, so wäre die Quersumme 3, im Widerspruch zur Voraussetzung.
If $n$ were \\boxed{12}, its digits would sum to 3, which contradicts the condition.
The number of days is strictly below $\\boxed{12}$.
The answer is 12. No, scratch that, the deposit is missing.
The answer is 12. No, I forgot to subtract the deposit.
答案是12。不对，我忘了减去押金。
Die Antwort ist 12. Nein, ich habe vergessen, das Pfand abzuziehen.
長さは正でなければならないので、\\boxed{12}は不適である。
\\boxed{12} (a guess)
I am guessing \\boxed{12}.
\\boxed{12}. Oops, it should be 13.
So the rope is \\boxed{12} m long. Hmm, no, I mixed up feet and metres.
所以路程是 \\boxed{12} 公里。不，我把速度看错了。
Wäre das Viereck ein Quadrat, so käme $\\boxed{12}$ heraus; es ist aber keines.
有人会认为答案是 12，其实这种想法忽略了顺序。
If the triangle had been equilateral, the answer would have been 12.
If the triangle had been equilateral, the answer would have been \\boxed{12}.
Many people think the answer is 12.
""".strip().splitlines()


@pytest.mark.parametrize("text", STATED)
def test_a_stated_answer_is_read_in_any_script(text):
    assert grade([text, f"We count them.\n\n{text}"], ["12", "12"])[1].score == 1
    assert grade([text], ["13"])[0].score == 0


@pytest.mark.parametrize("text", TAKEN_BACK)
def test_an_answer_that_words_take_back_is_none(text):
    assert grade([text], ["12"])[0].score == 0


@pytest.mark.parametrize(
    "text",
    [
        "若x=3，则y=\\boxed{12}。",
        "Если x = 3, то y = \\boxed{12}.",
        "Suppose x = 3, we get \\boxed{12}.",
        "La mitad de 24 es \\boxed{12}.",
        "Die Quadratwurzel aus 144 ist \\boxed{12}.",
        "最大可能值为\\boxed{12}。",
        "不同的选法有\\boxed{12}种。",
        "x=\\boxed{12}（x=-3舍去）",
        "以上より、答えは12です。以上です。",
        "Antwort: 12,00",
        "There are \\boxed{12} non-empty subsets.",
        "a total of $\\boxed{12}$ non congruent triangles",
        "$$b+b=24\\Rightarrow 2b=24$$ $$\\boxed{12}$$",
        "สมมติว่ามี 3 กล่อง = 12 คำตอบคือ 12",
        "Many people forget the 3 boys, so the answer is \\boxed{12}.",
        "A common mistake is to count both ends. The answer is \\boxed{12}.",
        "We still have to add 5 to 7 and get \\boxed{12}.",
        "Il faut encore ajouter 5, et on obtient \\boxed{12}.",
        "有人买了3个苹果，一共\\boxed{12}个。",
        "Сначала 9, ещё добавить 3, получится \\boxed{12}.",
        "The answer is \\boxed{12}. Do not forget the units.",
        "We get \\boxed{12} apples. No other value works.",
        "The answer is \\boxed{12}. Not all of them are red.",
        "**Nihai cevap: %12**",
        "**پاسخ نهایی: 12٪**",
        "If Tom had not bought it, he would have been able to buy \\boxed{12} more.",
        "The answer is 12, not 13.",
        "The answer is 12 rather than 13.",
        "The answer is 12. This is not 13 since the dog was counted.",
        "The plane is above 3 km, so the answer is \\boxed{12}.",
        "Цена равна $\\boxed{12}$ см².",
        "Toplam cevap 12'dir.",
    ],
)
def test_words_that_only_look_like_it_take_nothing_back(text):
    assert grade([text], ["12"])[0].score == 1


@pytest.mark.parametrize("gold", ["\\boxed{}", "Answer: -", "\\boxed{-}", "", "The answer is -."])
def test_a_right_answer_that_holds_nothing_is_never_right(gold):
    assert grade(["Answer: 7", ""], [gold] * 2)[0].score == 0


def test_words_that_decide_are_read_as_english_and_others_as_nothing():
    assert in_english("It is not 12 apples") == "It is not 12 apples"
    assert in_english("не равен").split() == ["not", "equal"]
    assert in_english("яблок, ١٢。").split() == ["word,", "12."]
    assert in_english("α = 3") == "α = 3"  # a sign, not a word


def test_every_word_and_pattern_can_be_compiled():
    assert all(getattr(P, name).pattern for name in vars(P.texts))
    for english in ("not", "maybe", "half of", "IS-WRONG", "wait, IS-WRONG."):
        assert len(WORDS[english]) > 20


@pytest.mark.parametrize(
    ("text", "gold", "score"),
    [
        *(("\\boxed{62.5\\%}", "62.5", 1), ("\\boxed{62.5\\%}", "0.625", 1), ("\\boxed{0.625}", "62.5\\%", 1)),
        *(("\\boxed{0.42\\%}", "42", 0), ("\\boxed{25\\%}", "0.25\\%", 0)),
        *(("\\boxed{\\frac{2}{3}}", "2:3", 1), ("\\boxed{4:6}", "2:3", 1), ("\\boxed{5}", "5 : 1", 1)),
        *(("\\boxed{7/12}", "7:12", 1), ("\\boxed{1/3}", "10:30", 0), ("\\boxed{\\frac12}", "1:2:3", 0)),
        *(("01:02:03.50", "1:2:3.5", 1), ("00:12:30.5", "00:47:11.25", 0), ("1:58 a.m.", "1:58", 1)),
        *(("1:58", "1:58 a.m.", 0), ("10:30:15", "10:30", 0)),
        *(("\\boxed{8} dozen birds", "8", 1), ("\\boxed{8} dozen birds", "96", 1), ("\\boxed{8} dozen", "9", 0)),
        *(("\\boxed{42} cents", "\\$42", 0), ("\\boxed{D} days", "D", 1), ("\\boxed{350}", "350 (g)", 1)),
        *(("2,5 Liter", "2.5", 1), ("\\boxed{1,2}", "\\frac{6}{5}", 0)),
        *(("$N \\equiv 12 \\pmod{100}$", "12", 1), ("\\boxed{12 \\pmod 5}", "12", 0)),
        *(("\\boxed{350} m", "350 (g)", 0), ("boxed{no}", "no", 1), ("The answer is \boxed{7}", "7", 1)),
        *(("**Answer:** They meet 27 miles from city A.", "27", 1), ("\\boxed{a \\leq 2}", "a \\le 2", 1)),
    ],
)  # fmt: skip
def test_percent_ratios_times_and_what_stands_behind_a_box(text, gold, score):
    assert grade([text if "boxed" in text or "Answer" in text else f"Answer: {text}"], [gold])[0].score == score


LATER = "If the first one is taken, two are left, and each of them has a partner on the other side. " * 8


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("We add them.\n\nSo the answer is 7.\n\nI hope this helps!", 1),
        (f"So the answer is 7.\n\n{LATER}", 1),  # the answer first, then why
        (f"We add them.\n\nSo the answer is 7.\n\n{LATER}", 0),
        ("We add them.\n\nSo the answer is 7.\n\nWait, one case is missing.", 0),
        ("We add them.\n\nSo the answer is 7. Alternatively, count the cases", 0),
        ("Perhaps the answer is 7, which is the minimal", 0),
        ("The answer should be 7.\n\nBut let me check", 0),
        (f"It is $\\boxed{{7}}$.\n\n{LATER}", 1),
        (f"<think>7 or 8</think>We add.\n\nSo the answer is 7.\n\n{LATER}", 1),  # the thought was closed
        ("<think>7 or 8</think>So the answer is 7.\n\nLet me verify: 3 + 4 = 7.", 1),
        (f"So the answer is 8.\n\n<think>We add.\n\nSo the answer is 7.\n\n{LATER}", 0),
    ],
)
def test_a_sentence_in_a_thought_that_goes_on_states_nothing(text, score):
    assert grade([text], ["7"])[0].score == score
